"""More than there is room for, and what is refused at the door."""

import asyncio
import math
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from spearhead.errors import (
    InvalidRequest,
    NotReady,
    Overloaded,
    PrecisionUnavailable,
    RequestExists,
    SpearheadError,
)
from spearhead.rpc import error_from_rpc
from spearhead.v1 import scheduler_pb2, types_pb2
from tests.scheduler_service.conftest import StackFactory
from tests.scheduler_service.stack import Stack, Stream


async def refused(stack: Stack, request: scheduler_pb2.GenerateRequest) -> SpearheadError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stack.generate(request)
    return error_from_rpc(caught.value)


def details(error: grpc.aio.AioRpcError, cls: Any) -> list[Any]:
    metadata = dict(error.trailing_metadata() or ())
    status = status_pb2.Status.FromString(metadata["grpc-status-details-bin"])
    found = []
    for detail in status.details:
        message = cls()
        if detail.Unpack(message):
            found.append(message)
    return found


async def test_a_full_queue_refuses_with_a_time_to_retry(make_stack: StackFactory) -> None:
    limits = {"max_running_requests": 1, "max_waiting_requests": 2}
    async with make_stack(limits=limits) as stack:
        stack.verify.gate.clear()
        calls = [Stream(stack.stub.Generate(stack.request(f"{i}", max_tokens=3))) for i in range(3)]
        for stream in calls:
            await stream.next("started")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stack.generate(stack.request("one too many", max_tokens=3))
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        (retry,) = details(caught.value, error_details_pb2.RetryInfo)
        assert retry.retry_delay.ToNanoseconds() > 0
        load = await stack.stub.GetLoad(scheduler_pb2.GetLoadRequest())
        assert (load.running_requests, load.waiting_requests, load.waiting_tokens) == (1, 2, 2)
        stack.verify.gate.set()
        for stream in calls:
            await stream.rest()
        await stack.idle()


async def test_too_many_waiting_tokens_are_refused(make_stack: StackFactory) -> None:
    async with make_stack(limits={"max_running_requests": 1, "max_waiting_tokens": 50}) as stack:
        running = await stack.open(stack.request(max_tokens=3900))
        waiting = Stream(stack.stub.Generate(stack.request("x" * 30, max_tokens=3)))
        await waiting.next("started")
        error = await refused(stack, stack.request("y" * 30, max_tokens=3))
        assert isinstance(error, Overloaded)
        assert "60 prompt tokens" in error.message
        assert error.retry_after_s
        running.cancel()
        await waiting.rest()


async def test_too_many_waiting_pages_are_refused(make_stack: StackFactory) -> None:
    limits = {"max_running_requests": 1, "max_waiting_page_factor": 1.0}
    async with make_stack(limits=limits, verify={"page_count": 100}) as stack:
        running = await stack.open(stack.request(max_tokens=300))
        waiting = Stream(stack.stub.Generate(stack.request("x", max_tokens=300)))
        await waiting.next("started")
        error = await refused(stack, stack.request("y", max_tokens=300))
        assert isinstance(error, Overloaded)
        assert "KV pages" in error.message
        running.cancel()
        await waiting.rest()


async def test_a_higher_priority_runs_first(make_stack: StackFactory) -> None:
    async with make_stack(limits={"max_running_requests": 1}) as stack:
        stack.verify.gate.clear()
        streams = []
        for priority in (0, 0, 50, -50, 50):
            stream = Stream(
                stack.stub.Generate(stack.request(f"p{priority}", max_tokens=2, priority=priority))
            )
            await stream.next("started")
            streams.append(stream)
        stack.verify.gate.set()
        await asyncio.gather(*(stream.rest() for stream in streams))
        order = list(dict.fromkeys(item.sequence_id for r in stack.verify.requests for item in r.items))
        assert order == [1, 3, 5, 2, 4]
        await stack.idle()


async def test_a_running_request_id_cannot_be_used_again(stack: Stack) -> None:
    running = await stack.open(stack.request(request_id="same", max_tokens=3900))
    error = await refused(stack, stack.request(request_id="same", max_tokens=1))
    assert isinstance(error, RequestExists)
    assert error.code == grpc.StatusCode.ALREADY_EXISTS
    running.cancel()
    await stack.idle()
    assert (await stack.generate(stack.request(request_id="same", max_tokens=1))).started.request_id == "same"


async def test_a_request_without_id_gets_one(stack: Stack) -> None:
    answers = [await stack.generate(stack.request(max_tokens=1)) for _ in range(2)]
    ids = {answer.started.request_id for answer in answers}
    assert len(ids) == 2
    assert all(ids)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"temperature": math.nan}, "sampling.temperature"),
        ({"top_p": 0.0}, "sampling.top_p"),
        ({"logit_bias": {100_000: 1.0}}, "sampling.logit_bias"),
        ({"precision": 99}, "precision"),
        ({"max_tokens": 5000}, "sampling.max_tokens"),
        ({"request_id": "x" * 200}, "request_id"),
        ({"slo": {"itl_ms": 20.0}}, "slo.itl_ms"),
    ],
)
async def test_a_bad_request_is_refused_with_its_field(
    stack: Stack, fields: dict[str, Any], field: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stack.generate(stack.request(**fields))
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    (bad_request,) = details(caught.value, error_details_pb2.BadRequest)
    assert [violation.field for violation in bad_request.field_violations] == [field]
    assert stack.verify.requests == []


async def test_a_prompt_of_five_megabytes_is_refused(stack: Stack) -> None:
    error = await refused(stack, stack.request("x" * (5 << 20)))
    assert isinstance(error, InvalidRequest)
    assert error.code == grpc.StatusCode.INVALID_ARGUMENT
    assert str(5 << 20) in error.message


async def test_a_prompt_beyond_the_context_is_refused_with_its_length(stack: Stack) -> None:
    error = await refused(stack, stack.request("x" * 5000))
    assert isinstance(error, InvalidRequest)
    assert "5000 tokens" in error.message
    assert "4096" in error.message


async def test_a_chat_role_that_is_no_role_is_refused(stack: Stack) -> None:
    request = scheduler_pb2.GenerateRequest(chat={"messages": [{"role": "<|x|>", "content": "hi"}]})
    error = await refused(stack, request)
    assert isinstance(error, InvalidRequest)
    assert error.field.startswith("chat.messages")


async def test_full_precision_is_refused_where_there_is_none(stack: Stack) -> None:
    stack.verify.has_full_precision = False
    error = await refused(stack, stack.request(precision=types_pb2.PRECISION_FULL))
    assert isinstance(error, PrecisionUnavailable)
    assert (await stack.generate(stack.request(max_tokens=2))).token_ids
    await stack.idle()


@pytest.mark.parametrize("reason", ["NON_FINITE", "INVALID"])
async def test_an_item_that_cannot_be_computed_fails_its_request_alone(
    make_stack: StackFactory, reason: str
) -> None:
    async with make_stack(with_draft=False) as stack:
        stack.verify.item_faults = {1: types_pb2.ItemErrorReason.Value(f"ITEM_ERROR_REASON_{reason}")}
        error = await refused(stack, stack.request(max_tokens=5))
        assert error.code == grpc.StatusCode.INTERNAL
        assert f"injected ITEM_ERROR_REASON_{reason}" in error.message
        request = stack.request(max_tokens=5)
        assert (await stack.generate(request)).token_ids == stack.expected(request)
        await stack.idle()


async def test_a_request_that_only_loses_steps_fails_in_the_end(make_stack: StackFactory) -> None:
    async with make_stack(limits={"max_failed_steps": 2}) as stack:

        def always(count: int) -> None:
            raise RuntimeError("injected")

        stack.verify.before_step = always
        error = await refused(stack, stack.request(max_tokens=5))
        assert isinstance(error, NotReady)
        assert stack.metric("step_failures_total") == 3


async def test_new_requests_are_refused_while_the_verify_service_is_away(make_stack: StackFactory) -> None:
    async with make_stack() as stack:
        await stack.verify_server.kill()
        await stack.wait_workers(lambda: not stack.scheduler.ready)
        error = await refused(stack, stack.request(max_tokens=5))
        assert isinstance(error, NotReady)
        assert error.retry_after_s
        assert stack.verify_server.address in error.message
        await stack.verify_server.start()
        await stack.wait_workers(lambda: stack.scheduler.ready)
        assert (await stack.generate(stack.request(max_tokens=5))).token_ids


async def test_a_request_without_deadline_gives_up_on_a_lost_verify_service(make_stack: StackFactory) -> None:
    async with make_stack(limits={"verify_wait_s": 0.1}) as stack:
        stream = await stack.open(stack.request(max_tokens=3900))
        await stack.verify_server.kill()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stream.rest()
        assert isinstance(error_from_rpc(caught.value), NotReady)
        assert list(stack.scheduler.requests) == []


async def test_a_verify_service_that_hangs_is_left_and_found_again(make_stack: StackFactory) -> None:
    async with make_stack(limits={"verify_timeout_s": 0.2}, with_draft=False) as stack:
        stack.verify.gate.clear()
        request = stack.request(max_tokens=10)
        running = asyncio.create_task(stack.generate(request))
        await stack.verify.arrived.wait()
        await stack.wait_workers(lambda: not stack.scheduler.ready)
        stack.verify.gate.set()
        assert (await running).token_ids == stack.expected(request)
        await stack.idle()


async def test_a_drafter_that_hangs_is_done_without_for_as_long_as_it_hangs(make_stack: StackFactory) -> None:
    limits = {"draft_timeout_s": 0.05, "max_draft_timeouts": 2, "connect_timeout_s": 0.2}
    async with make_stack(limits=limits) as stack:
        stack.draft.gate.clear()
        stream = await stack.open(stack.request(max_tokens=3900))
        await stack.wait_workers(lambda: not stack.scheduler.pool.draft_available)
        assert "did not answer" in stack.scheduler.pool.draft_status
        failures = stack.metric("draft_failures_total")
        assert failures >= 2
        stream.cancel()
        # It accepts connections and answers handshakes, over and over, while steps go on without it.
        for _ in range(3):
            request = stack.request(max_tokens=500)
            assert (await stack.generate(request)).token_ids == stack.expected(request)
            connections = stack.draft.connection_count
            await stack.draft.wait_for(lambda before=connections: stack.draft.connection_count > before)
        assert not stack.scheduler.pool.draft_available
        assert stack.metric("draft_failures_total") == failures
        stack.draft.gate.set()
        await stack.wait_workers(lambda: stack.scheduler.pool.draft_available)
        request = stack.request(max_tokens=30)
        answer = await stack.generate(request)
        assert answer.token_ids == stack.expected(request)
        assert answer.finished.speculation.active


async def test_a_drafter_with_another_tokenizer_is_refused_with_both_hashes(make_stack: StackFactory) -> None:
    async with make_stack(draft={"tokenizer_hash": "sha256:other"}) as stack:
        info = await stack.stub.GetServerInfo(scheduler_pb2.GetServerInfoRequest())
        assert info.draft_status.startswith("refused: ")
        assert "sha256:other" in info.draft_status
        assert stack.tokenizer.hash in info.draft_status
        request = stack.request(max_tokens=10)
        answer = await stack.generate(request)
        assert answer.token_ids == stack.expected(request)
        assert answer.finished.speculation.inactive_reason.startswith("draft service refused: ")


async def test_a_draining_server_finishes_what_runs_and_waits(make_stack: StackFactory) -> None:
    async with make_stack(limits={"max_running_requests": 1}) as stack:
        requests = [stack.request(f"{i}", max_tokens=50) for i in range(3)]
        streams = [Stream(stack.stub.Generate(request)) for request in requests]
        for stream in streams:
            await stream.next("started")
        draining = asyncio.create_task(stack.server.drain(20.0))
        for request, stream in zip(requests, streams, strict=True):
            assert (await stream.rest()).token_ids == stack.expected(request)
        await draining
        assert isinstance(await refused(stack, stack.request(max_tokens=1)), NotReady)
