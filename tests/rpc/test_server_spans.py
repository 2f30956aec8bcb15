"""Each row of the table of cases that the stock instrumentation records wrongly, and the span's content."""

import asyncio
import logging

import grpc
import pytest
from opentelemetry import trace
from opentelemetry.trace import StatusCode

from spearhead.telemetry import Telemetry
from spearhead.v1 import scheduler_pb2, scheduler_pb2_grpc, verify_pb2, verify_pb2_grpc

ABORT = "spearhead.v1.SchedulerService/Abort"
GENERATE = "spearhead.v1.SchedulerService/Generate"
STEP = "spearhead.v1.VerifyService/Step"


def code_of(span):
    return span.attributes["rpc.response.status_code"]


async def abort(running, request_id, **options):
    async with running.channel() as channel:
        stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
        return await stub.Abort(scheduler_pb2.AbortRequest(request_id=request_id), **options)


async def failed_abort(running, request_id, **options):
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await abort(running, request_id, **options)
    return raised.value


async def test_a_stream_that_the_client_cancels_is_cancelled(serve, span_log):
    running = await serve()
    async with running.channel() as channel:
        call = scheduler_pb2_grpc.SchedulerServiceStub(channel).Generate(scheduler_pb2.GenerateRequest())
        await call.read()
        call.cancel()
        span = await span_log.first("SERVER", GENERATE)
    assert code_of(span) == "CANCELLED"
    assert span.status.status_code is StatusCode.UNSET  # the caller's wish, not the server's fault


async def test_a_stream_past_its_deadline_has_exceeded_it(serve, span_log):
    running = await serve()
    async with running.channel() as channel:
        stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError):
            async for _ in stub.Generate(scheduler_pb2.GenerateRequest(), timeout=0.2):
                pass
        span = await span_log.first("SERVER", GENERATE)
    assert code_of(span) == "DEADLINE_EXCEEDED"
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes["error.type"] == "DEADLINE_EXCEEDED"


async def test_a_bug_is_an_internal_error_with_one_exception_event(serve, span_log, caplog):
    running = await serve()
    with caplog.at_level(logging.ERROR, "spearhead.rpc"):
        await failed_abort(running, "bug")
    span = await span_log.first("SERVER", ABORT)
    assert code_of(span) == "INTERNAL"
    assert span.status.status_code is StatusCode.ERROR
    assert [event.name for event in span.events] == ["exception"]
    assert span.events[0].attributes["exception.type"] == "KeyError"


async def test_an_abort_keeps_its_code_without_an_error_or_exception(serve, span_log):
    running = await serve()
    await failed_abort(running, "abort")
    span = await span_log.first("SERVER", ABORT)
    assert code_of(span) == "RESOURCE_EXHAUSTED"
    assert span.status.status_code is StatusCode.UNSET
    assert span.events == ()


async def test_an_error_of_the_tree_keeps_its_code(serve, span_log):
    running = await serve()
    await failed_abort(running, "raise")
    assert code_of(await span_log.first("SERVER", ABORT)) == "INVALID_ARGUMENT"


async def test_a_handler_that_writes_gets_a_span_too(serve, span_log):
    class Writer(scheduler_pb2_grpc.SchedulerServiceServicer):
        async def Generate(self, request, context):  # noqa: N802
            await context.write(scheduler_pb2.GenerateResponse())

    running = await serve(scheduler=Writer())
    async with running.channel() as channel:
        call = scheduler_pb2_grpc.SchedulerServiceStub(channel).Generate(scheduler_pb2.GenerateRequest())
        assert len([response async for response in call]) == 1
    assert code_of(await span_log.first("SERVER", GENERATE)) == "OK"


async def test_a_code_that_the_handler_sets_without_raising_is_kept(serve, span_log):
    class Setter(scheduler_pb2_grpc.SchedulerServiceServicer):
        async def Abort(self, request, context):  # noqa: N802
            context.set_code(grpc.StatusCode.NOT_FOUND)
            return scheduler_pb2.AbortResponse()

    running = await serve(scheduler=Setter())
    assert (await failed_abort(running, "")).code() is grpc.StatusCode.NOT_FOUND
    assert code_of(await span_log.first("SERVER", ABORT)) == "NOT_FOUND"


async def test_a_span_says_what_was_called_and_where(serve, span_log):
    running = await serve()
    await abort(running, "")
    span = await span_log.first("SERVER", ABORT)
    host, port = running.address.split(":")
    assert dict(span.attributes) == {
        "rpc.system.name": "grpc",
        "rpc.method": ABORT,
        "server.address": host,
        "server.port": int(port),
        "rpc.response.status_code": "OK",
    }


async def test_a_span_of_a_unix_socket_has_its_path_and_no_port(serve, span_log, tmp_path):
    running = await serve(listen=f"unix:{tmp_path}/s")
    await abort(running, "")
    span = await span_log.first("SERVER", ABORT)
    assert span.attributes["server.address"] == f"{tmp_path}/s"
    assert "server.port" not in span.attributes


async def test_the_callers_trace_goes_on(serve, span_log):
    running = await serve()
    traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    await abort(running, "", metadata=(("traceparent", traceparent), ("tracestate", "vendor=1")))
    span = await span_log.first("SERVER", ABORT)
    assert span.context.trace_id == 0x0AF7651916CD43DD8448EB211C80319C
    assert span.parent.span_id == 0xB7AD6B7169203331
    assert span.context.trace_state.get("vendor") == "1"


async def test_a_caller_that_does_not_sample_is_not_recorded(serve, span_log):
    running = await serve()
    unsampled = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
    await abort(running, "", metadata=(("traceparent", unsampled),))
    await abort(running, "")
    await span_log.first("SERVER", ABORT)
    assert len(span_log.spans) == 1


async def test_handlers_run_inside_their_span_and_concurrent_calls_do_not_mix(serve, span_log):
    seen: dict[str, int] = {}
    both = asyncio.Barrier(2)

    class Looker(scheduler_pb2_grpc.SchedulerServiceServicer):
        async def Generate(self, request, context):  # noqa: N802
            await both.wait()
            yield scheduler_pb2.GenerateResponse()
            await both.wait()
            seen[request.request_id] = trace.get_current_span().get_span_context().trace_id

    running = await serve(scheduler=Looker())

    async def generate(request_id):
        traceparent = f"00-{int(request_id):032x}-b7ad6b7169203331-01"
        call = scheduler_pb2_grpc.SchedulerServiceStub(channel).Generate(
            scheduler_pb2.GenerateRequest(request_id=request_id), metadata=(("traceparent", traceparent),)
        )
        async for _ in call:
            pass

    async with running.channel() as channel:
        await asyncio.gather(generate("1"), generate("2"))
    assert seen == {"1": 1, "2": 2}


async def test_a_worker_stream_has_two_short_spans_and_none_for_its_life(serve, span_log):
    running = await serve()
    async with running.channel() as channel:
        call = verify_pb2_grpc.VerifyServiceStub(channel).Step()
        await call.write(verify_pb2.StepRequest(step_id=1))
        await call.read()
        opened = await span_log.first("SERVER", "worker.stream opened")
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        closed = await span_log.first("SERVER", "worker.stream closed")
    assert opened.attributes["rpc.method"] == STEP
    assert code_of(closed) == "OK"
    assert closed.links[0].context.span_id == opened.context.span_id
    assert closed.attributes["spearhead.stream.duration_ns"] > 0
    assert len(span_log.spans) == 2


async def test_a_worker_stream_that_breaks_says_so_when_it_closes(serve, span_log):
    running = await serve()
    async with running.channel() as channel:
        call = verify_pb2_grpc.VerifyServiceStub(channel).Step()
        await call.write(verify_pb2.StepRequest(step_id=1))
        await call.read()
    assert code_of(await span_log.first("SERVER", "worker.stream closed")) == "CANCELLED"


async def test_which_streams_are_worker_streams_can_be_configured(serve, span_log):
    running = await serve(worker_stream_methods=frozenset())
    async with running.channel() as channel:
        call = verify_pb2_grpc.VerifyServiceStub(channel).Step(iter([verify_pb2.StepRequest()]))
        assert len([response async for response in call]) == 1
    assert code_of(await span_log.first("SERVER", STEP)) == "OK"


async def test_calls_are_counted_by_method_and_code(serve, telemetry: Telemetry):
    running = await serve()
    await abort(running, "")
    await failed_abort(running, "abort")

    def calls(code):
        labels = {"method": ABORT, "code": code}
        return telemetry.registry.get_sample_value("spearhead_rpc_server_calls_total", labels)

    assert (calls("OK"), calls("RESOURCE_EXHAUSTED")) == (1, 1)
    count = telemetry.registry.get_sample_value(
        "spearhead_rpc_server_duration_seconds_count", {"method": ABORT}
    )
    assert count == 2
