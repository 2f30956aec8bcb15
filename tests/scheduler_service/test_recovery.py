"""What a lost, changed or confused verify service does to the requests that run on it."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator

import grpc
import pytest

from scheduler_service.request import WorkerSequence
from spearhead.errors import NotReady, Overloaded, SpearheadError
from spearhead.rpc import error_from_rpc
from spearhead.v1 import types_pb2
from tests.scheduler_service.conftest import StackFactory
from tests.scheduler_service.fake_workers import FakeCache, FakeVerify, HeldSequence
from tests.scheduler_service.stack import Stack, Stream


async def failure(stream: Stream) -> SpearheadError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stream.rest()
    return error_from_rpc(caught.value)


async def away(stack: Stack) -> None:
    await stack.verify_server.kill()
    await stack.wait_workers(lambda: not stack.scheduler.ready)


async def test_other_weights_end_what_has_tokens_and_start_the_rest_afresh(make_stack: StackFactory) -> None:
    async with make_stack(limits={"max_running_requests": 1}) as stack:
        begun = await stack.open(stack.request("begun", max_tokens=3900))
        fresh = stack.request("waits", max_tokens=20)
        waiting = Stream(stack.stub.Generate(fresh))
        await waiting.next("started")
        await away(stack)
        stack.verify.revision = "sha256:2"
        await stack.verify_server.start()
        error = await failure(begun)
        assert isinstance(error, NotReady)
        assert "revision sha256:1" in error.message
        assert "revision sha256:2" in error.message
        assert error.retry_after_s
        assert (await waiting.rest()).token_ids == stack.expected(fresh)
        await stack.idle()


async def test_the_same_weights_with_other_pages_go_on(make_stack: StackFactory) -> None:
    async with make_stack() as stack:
        request = stack.request(max_tokens=1000)
        stream = await stack.open(request)
        await away(stack)
        stack.verify.page_size = 16
        await stack.verify_server.start()
        assert (await stream.rest()).token_ids == stack.expected(request)
        await stack.idle()


async def test_a_smaller_context_ends_what_may_outgrow_it(make_stack: StackFactory) -> None:
    async with make_stack(limits={"max_running_requests": 1}) as stack:
        large = await stack.open(stack.request(max_tokens=3900))
        small = stack.request("small", max_tokens=20)
        waiting = Stream(stack.stub.Generate(small))
        await waiting.next("started")
        await away(stack)
        stack.verify.context_length = 1000
        await stack.verify_server.start()
        error = await failure(large)
        assert isinstance(error, NotReady)
        assert "1000 tokens" in error.message
        assert (await waiting.rest()).token_ids == stack.expected(small)


async def test_results_of_another_epoch_end_a_request_in_the_end(make_stack: StackFactory) -> None:
    async with make_stack(with_draft=False, limits={"max_failed_steps": 3}) as stack:
        stack.verify.epoch_offset = 1
        stream = Stream(stack.stub.Generate(stack.request(max_tokens=5)))
        error = await failure(stream)
        assert error.code == grpc.StatusCode.INTERNAL
        assert "epoch" in error.message
        assert stack.metric("stale_replies_total", worker="verify") == 4
        stack.verify.epoch_offset = 0
        request = stack.request(max_tokens=5)
        assert (await stack.generate(request)).token_ids == stack.expected(request)
        await stack.idle()


async def test_the_last_one_is_not_failed_while_pages_are_about_to_be_freed(
    make_stack: StackFactory,
) -> None:
    async with make_stack(with_draft=False) as stack:
        short = stack.request("a", max_tokens=30)
        stream = Stream(stack.stub.Generate(short))
        await stream.next("started")
        long = stack.request("b", max_tokens=60)
        starved = []

        def starve(count: int) -> None:
            # In the step with which the short one ends, the long one finds no page.
            items = stack.verify.requests[-1].items
            if len(items) == 2 and items[0].committed_length == 29:
                starved.append(count)
                out_of_pages = types_pb2.ITEM_ERROR_REASON_OUT_OF_PAGES
                stack.verify.item_faults = {stack.verify.item_count + 2: out_of_pages}

        stack.verify.before_step = starve
        answers = await asyncio.gather(stream.rest(), stack.generate(long))
        assert [answer.token_ids for answer in answers] == [stack.expected(short), stack.expected(long)]
        assert len(starved) == 1
        await stack.idle()


@contextlib.contextmanager
def held_by_another_client(verify: FakeVerify) -> Iterator[Callable[[], None]]:
    """All pages of the worker belong to another client's stream, until it is called or left."""
    cache = FakeCache(verify)
    tokens = [0] * (verify.page_count * verify.page_size)
    cache.sequences = {1: HeldSequence(epoch=0, token_ids=tokens)}
    verify.caches.append(cache)
    yield cache.sequences.clear
    verify.caches.remove(cache)


async def test_a_request_alone_waits_for_pages_that_another_client_frees(make_stack: StackFactory) -> None:
    async with make_stack(with_draft=False, limits={"max_failed_steps": 3}) as stack:
        with held_by_another_client(stack.verify) as let_go:
            stack.verify.before_step = lambda count: let_go() if count == 3 else None
            request = stack.request(max_tokens=20)
            assert (await stack.generate(request)).token_ids == stack.expected(request)
        # Only the first time did it not know better; then it asked until the third answer.
        assert stack.verify.out_of_pages_count == 1
        assert [len(message.items) for message in stack.verify.requests[:4]] == [1, 0, 0, 1]
        await stack.idle()


async def test_a_request_alone_does_not_wait_for_ever_for_pages(make_stack: StackFactory) -> None:
    async with make_stack(with_draft=False, limits={"max_failed_steps": 3}) as stack:
        with held_by_another_client(stack.verify):
            stream = Stream(stack.stub.Generate(stack.request(max_tokens=20)))
            error = await failure(stream)
        assert isinstance(error, Overloaded)
        assert "no progress in 4 steps" in error.message
        assert error.retry_after_s
        # The last that the scheduler heard is that no page is free; the next request asks again.
        request = stack.request(max_tokens=20)
        assert (await stack.generate(request)).token_ids == stack.expected(request)
        await stack.idle()


async def test_a_request_alone_survives_a_passing_lack_of_pages(make_stack: StackFactory) -> None:
    async with make_stack(limits={"max_failed_steps": 2}) as stack:
        out_of_pages = types_pb2.ITEM_ERROR_REASON_OUT_OF_PAGES
        stack.verify.item_faults = dict.fromkeys((1, 2, 4, 5, 7, 8), out_of_pages)
        request = stack.request(max_tokens=24)
        assert (await stack.generate(request)).token_ids == stack.expected(request)
        assert not stack.verify.item_faults
        await stack.idle()


async def test_an_outage_is_waiting_time(make_stack: StackFactory) -> None:
    async with make_stack(limits={"min_reconnect_s": 0.2, "max_reconnect_s": 0.2}) as stack:
        stream = await stack.open(stack.request(max_tokens=1000))
        await away(stack)
        lost_s = time.monotonic()
        await stack.verify_server.start()
        await stack.wait_workers(lambda: stack.scheduler.ready)
        outage_s = time.monotonic() - lost_s
        timings = (await stream.rest()).finished.timings
        assert timings.queue.ToNanoseconds() / 1e9 >= outage_s
        assert outage_s > 0.1


async def test_a_problem_says_for_how_long(stack: Stack) -> None:
    await away(stack)
    assert stack.scheduler.pool.problem.endswith("(for 0 s)")


def test_a_new_connection_starts_a_sequence_afresh() -> None:
    sequence = WorkerSequence()
    sequence.computed_length, sequence.held = 7, True
    sequence.attach(1)
    assert (sequence.computed_length, sequence.held, sequence.epoch) == (0, False, 1)
    sequence.attach(1)
    assert sequence.epoch == 1
