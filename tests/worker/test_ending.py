"""An ending is reached once, and whoever waits is told."""

import asyncio
import threading

import pytest

from spearhead.errors import NotReady, RankFailure
from spearhead.worker.ending import Ending
from spearhead.worker.model_thread import ModelThread


async def test_the_first_reason_counts_and_reaches_those_who_wait_and_those_who_come_later():
    ending = Ending()
    waiting = asyncio.ensure_future(ending.wait())
    await asyncio.sleep(0)
    first = RankFailure("rank 1 is gone")
    thread = threading.Thread(target=lambda: (ending.reach(first), ending.reach(NotReady("later"))))
    thread.start()
    assert await waiting is first
    thread.join()
    assert await ending.wait() is first


async def test_work_that_may_never_end_fails_when_the_ending_is_reached():
    ending, gate = Ending(), threading.Event()
    thread = ModelThread("test", ending)
    running = asyncio.ensure_future(thread.run(gate.wait))
    await asyncio.sleep(0)
    ending.reach(RankFailure("rank 1 is gone"))
    with pytest.raises(RankFailure, match="rank 1 is gone"):
        await running
    assert thread.busy
    gate.set()
    thread.close()


async def test_work_has_its_result_and_its_own_error_while_there_is_no_end():
    thread = ModelThread("test", Ending())
    assert (await thread.run(lambda: 7)).result == 7
    with pytest.raises(ZeroDivisionError):
        await thread.run(lambda: 1 / 0)
    thread.close()


async def test_an_ending_without_an_error_leaves_work_alone():
    ending = Ending()
    ending.reach(None)
    thread = ModelThread("test", ending)
    assert (await thread.run(lambda: 7)).result == 7
    thread.close()
