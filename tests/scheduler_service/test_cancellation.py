"""Whoever leaves, however: nothing stays behind on either worker."""

import asyncio
import contextlib
import random
import threading

import grpc
import pytest

from spearhead.errors import DeadlineExceeded, SlowReader, SpearheadError
from spearhead.rpc import TargetConfig, create_channel, error_from_rpc
from spearhead.tokenizer import Tokenizer
from spearhead.v1 import scheduler_pb2, scheduler_pb2_grpc
from tests.scheduler_service.conftest import StackFactory
from tests.scheduler_service.stack import Stack, Stream


async def test_a_cancelled_request_is_freed_with_a_message_of_its_own(stack: Stack) -> None:
    stream = await stack.open(stack.request(max_tokens=3000))
    assert stack.verify.sequence_count == 1
    stream.cancel()
    await stack.idle()
    assert stack.metric("num_requests_running") == 0
    assert stack.metric("e2e_request_latency_seconds_count") == 1
    assert [r.sequence_id for r in stack.verify.requests[-1].releases] == [1]
    assert not stack.verify.requests[-1].items


@pytest.mark.parametrize("page_count", [1000, 300])
async def test_requests_cancelled_at_random_points_leave_nothing(
    make_stack: StackFactory, page_count: int
) -> None:
    generator = random.Random(page_count)
    pages = {"page_count": page_count}
    limits = {"max_running_requests": 8}
    policy = {"static_step_tokens": 24}
    async with make_stack(limits=limits, policy=policy, verify=pages, draft=pages) as stack:

        async def leave_early(number: int) -> None:
            request = stack.request(f"{number} " * generator.randint(1, 20), max_tokens=200)
            stream = Stream(stack.stub.Generate(request))
            with contextlib.suppress(asyncio.CancelledError):
                for _ in range(generator.randint(0, 12)):
                    await anext(stream._iterator)
            stream.cancel()

        stay = stack.request("stays", max_tokens=400)
        answer, *_ = await asyncio.gather(stack.generate(stay), *(leave_early(n) for n in range(60)))
        assert answer.token_ids == stack.expected(stay)
        await stack.idle()


async def test_a_request_cancelled_during_its_prefill_is_freed(make_stack: StackFactory) -> None:
    async with make_stack(policy={"static_step_tokens": 8}) as stack:
        stack.verify.gate.clear()
        call = stack.stub.Generate(stack.request("x" * 500, max_tokens=5))
        await stack.verify.arrived.wait()
        call.cancel()
        await stack.scheduler_empty()
        stack.verify.gate.set()
        await stack.idle()
        assert len(stack.verify.requests) <= 3


async def test_abort_ends_a_request_properly_and_may_be_repeated(stack: Stack) -> None:
    stream = await stack.open(stack.request(request_id="mine", max_tokens=3000))
    abort = scheduler_pb2.AbortRequest(request_id="mine")
    assert (await stack.stub.Abort(abort)).found
    answer = await stream.rest()
    assert answer.finished.reason == scheduler_pb2.FINISH_REASON_ABORT
    assert answer.token_ids == stack.expected(stack.request(max_tokens=3000))[: len(answer.token_ids)]
    assert not (await stack.stub.Abort(abort)).found
    await stack.idle()


async def test_abort_shows_the_text_that_was_held_back(stack: Stack) -> None:
    request = stack.request(request_id="mine", max_tokens=3000, stop=["x" * 1000])
    stream = await stack.open(request)
    await stack.stub.Abort(scheduler_pb2.AbortRequest(request_id="mine"))
    answer = await stream.rest()
    assert answer.text == stack.tokenizer.decode(answer.token_ids)


class GatedTokenizer(Tokenizer):
    """Takes its time with long prompts."""

    tokenising, gate = threading.Event(), threading.Event()

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        if len(text) > 999:
            self.tokenising.set()
            assert self.gate.wait(20)
        return super().encode(text, add_special_tokens)


async def test_an_abort_that_comes_while_the_prompt_is_tokenised_counts(make_stack: StackFactory) -> None:
    async with make_stack(tokenizer_class=GatedTokenizer) as stack:
        request = stack.request("x" * 1000, request_id="mine", max_tokens=3000)
        stream = Stream(stack.stub.Generate(request))
        first = asyncio.create_task(stream.next("started"))
        assert await asyncio.to_thread(GatedTokenizer.tokenising.wait, 20)
        assert (await stack.stub.Abort(scheduler_pb2.AbortRequest(request_id="mine"))).found
        GatedTokenizer.gate.set()
        await first
        answer = await stream.rest()
        assert answer.finished.reason == scheduler_pb2.FINISH_REASON_ABORT
        assert answer.token_ids == []
        await stack.idle()


async def test_abort_ends_a_waiting_request(make_stack: StackFactory) -> None:
    async with make_stack(limits={"max_running_requests": 1}) as stack:
        running = await stack.open(stack.request(max_tokens=3000))
        waiting = Stream(stack.stub.Generate(stack.request(request_id="waits", max_tokens=5)))
        await waiting.next("started")
        assert (await stack.stub.GetLoad(scheduler_pb2.GetLoadRequest())).waiting_requests == 1
        assert (await stack.stub.Abort(scheduler_pb2.AbortRequest(request_id="waits"))).found
        answer = await waiting.rest()
        assert answer.finished.usage.completion_tokens == 0
        assert answer.finished.timings.queue.ToNanoseconds() > 0
        assert not answer.finished.timings.HasField("time_to_first_token")
        running.cancel()
        await stack.idle()


async def test_a_deadline_ends_a_running_request(stack: Stack) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stack.generate(stack.request(max_tokens=3900), timeout=0.2)
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    await stack.idle()


async def test_a_request_that_expires_in_the_queue_is_never_computed(make_stack: StackFactory) -> None:
    async with make_stack(limits={"max_running_requests": 1}) as stack:
        stack.verify.gate.clear()
        first = asyncio.create_task(stack.generate(stack.request("first", max_tokens=5)))
        await stack.verify.arrived.wait()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stack.generate(stack.request("expires", max_tokens=5), timeout=0.1)
        assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        await stack.wait_load(lambda load: load.waiting_requests == 0)
        stack.verify.gate.set()
        await first
        await stack.idle()
        assert {item.sequence_id for r in stack.verify.requests for item in r.items} == {1}


async def test_the_server_itself_reports_a_deadline(stack: Stack) -> None:
    """The client's clock may stop; the status then comes from the server."""
    stack.verify.gate.clear()
    # The metadata is all that the server knows of a deadline.
    call = stack.stub.Generate(stack.request(max_tokens=5), metadata=(("grpc-timeout", "100m"),))
    stream = Stream(call)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stream.rest()
    # Our own words, unless gRPC's timer of the same deadline was faster.
    assert isinstance(error_from_rpc(caught.value), DeadlineExceeded)
    stack.verify.gate.set()
    await stack.idle()


async def test_a_reader_that_never_reads_ends_alone(make_stack: StackFactory) -> None:
    limits = {"output_queue_tokens": 64}
    async with make_stack(limits=limits, verify={"context_length": 200_000, "page_count": 100_000}) as stack:
        # A window of a few kilobytes, so that the server notices soon.
        options = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1024))
        async with grpc.aio.insecure_channel(stack.server.address, options=options) as channel:
            stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
            stalled = stub.Generate(stack.request("stalled", max_tokens=100_000, logprobs=20))
            await stalled.read()
            other = stack.request("reads on", max_tokens=600)
            answer = await stack.generate(other)
            assert answer.token_ids == stack.expected(other)
            await stack.scheduler_empty()
            await stack.verify.wait_empty()
            error = await read_to_failure(stalled)
            assert isinstance(error, SlowReader)
            assert error.code == grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "reads too slowly" in error.message
        assert stack.metric("request_failure_total", reason="slow_reader") == 1
        await stack.idle()


async def read_to_failure(call: grpc.aio.UnaryStreamCall) -> SpearheadError:
    try:
        while await call.read() is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError as error:
        return error_from_rpc(error)
    raise AssertionError("the call did not fail")


async def test_a_client_that_disappears_is_noticed(stack: Stack) -> None:
    channel = create_channel(TargetConfig(address=stack.server.address))
    stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
    call = stub.Generate(stack.request(max_tokens=3900))
    await call.read()
    await channel.close()
    await stack.idle()
