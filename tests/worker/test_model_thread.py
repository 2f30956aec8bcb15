"""One thread, in order, and honest about being busy."""

import asyncio
import threading

import pytest

from spearhead.worker.model_thread import ModelThread


@pytest.fixture
def thread():
    made = ModelThread("test")
    yield made
    made.close()


async def test_work_runs_in_the_order_it_was_given(thread):
    order: list[int] = []
    await asyncio.gather(*(thread.run(lambda i=i: order.append(i)) for i in range(20)))
    assert order == list(range(20))


async def test_times_enclose_the_work(thread):
    timed = await thread.run(lambda: 7)
    assert timed.result == 7
    assert timed.started_ns <= timed.ended_ns


async def test_errors_reach_the_caller_and_leave_the_thread_idle(thread):
    with pytest.raises(ZeroDivisionError):
        await thread.run(lambda: 1 / 0)
    assert not thread.busy


async def test_work_that_is_cancelled_before_it_began_is_forgotten(thread):
    gate = threading.Event()
    running = thread.submit(gate.wait)
    waiting = asyncio.ensure_future(thread.run(lambda: None))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert thread.busy
    gate.set()
    await asyncio.wrap_future(running)
    assert not thread.busy


async def test_progress_moves_when_work_begins_ends_and_beats(thread):
    before = thread.last_progress_s
    await thread.run(lambda: None)
    after = thread.last_progress_s
    assert after >= before
    thread.beat()
    assert thread.last_progress_s >= after
