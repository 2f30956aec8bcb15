import asyncio

import grpc
import pytest
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import StatusCode

from spearhead.rpc import TargetConfig, create_channel
from spearhead.v1 import scheduler_pb2, scheduler_pb2_grpc, verify_pb2, verify_pb2_grpc

ABORT = "spearhead.v1.SchedulerService/Abort"
GENERATE = "spearhead.v1.SchedulerService/Generate"


@pytest.fixture
async def traced(serve, telemetry):
    """A channel with client spans to a running server."""
    running = await serve()
    async with create_channel(TargetConfig(address=running.address), tracer=telemetry.tracer) as channel:
        yield channel


def code_of(span):
    return span.attributes["rpc.response.status_code"]


async def test_the_servers_span_is_the_child_of_the_clients(traced, span_log):
    await scheduler_pb2_grpc.SchedulerServiceStub(traced).Abort(scheduler_pb2.AbortRequest())
    server = await span_log.first("SERVER", ABORT)
    client = await span_log.first("CLIENT", ABORT)
    assert server.context.trace_id == client.context.trace_id
    assert server.parent.span_id == client.context.span_id
    assert code_of(client) == "OK"
    assert client.status.status_code is StatusCode.UNSET


async def test_the_clients_span_is_the_child_of_the_current_span(traced, telemetry, span_log):
    with telemetry.tracer.start_as_current_span("request") as request:
        await scheduler_pb2_grpc.SchedulerServiceStub(traced).Abort(scheduler_pb2.AbortRequest())
    client = await span_log.first("CLIENT", ABORT)
    assert client.parent.span_id == request.get_span_context().span_id


async def test_every_status_but_ok_is_an_error_to_the_client(traced, span_log):
    with pytest.raises(grpc.aio.AioRpcError):
        await scheduler_pb2_grpc.SchedulerServiceStub(traced).Abort(
            scheduler_pb2.AbortRequest(request_id="abort")
        )
    client = await span_log.first("CLIENT", ABORT)
    assert code_of(client) == client.attributes["error.type"] == "RESOURCE_EXHAUSTED"
    assert client.status.status_code is StatusCode.ERROR


async def test_the_span_of_a_cancelled_stream_ends_at_once(traced, span_log):
    call = scheduler_pb2_grpc.SchedulerServiceStub(traced).Generate(scheduler_pb2.GenerateRequest())
    await call.read()
    call.cancel()
    assert code_of(await span_log.first("CLIENT", GENERATE)) == "CANCELLED"


async def test_the_span_of_a_stream_past_its_deadline_ends(traced, span_log):
    stub = scheduler_pb2_grpc.SchedulerServiceStub(traced)
    with pytest.raises(grpc.aio.AioRpcError):
        async for _ in stub.Generate(scheduler_pb2.GenerateRequest(), timeout=0.2):
            pass
    assert code_of(await span_log.first("CLIENT", GENERATE)) == "DEADLINE_EXCEEDED"


async def test_the_span_of_a_stream_on_a_closed_channel_ends(serve, telemetry, span_log):
    running = await serve()
    async with create_channel(TargetConfig(address=running.address), tracer=telemetry.tracer) as channel:
        call = scheduler_pb2_grpc.SchedulerServiceStub(channel).Generate(scheduler_pb2.GenerateRequest())
        await call.read()
    assert code_of(await span_log.first("CLIENT", GENERATE)) == "CANCELLED"


async def test_the_span_of_a_call_that_cannot_start_ends(serve, telemetry, span_log):
    running = await serve()
    channel = create_channel(TargetConfig(address=running.address), tracer=telemetry.tracer)
    await channel.close()
    with pytest.raises(grpc.aio.UsageError):
        scheduler_pb2_grpc.SchedulerServiceStub(channel).Abort(scheduler_pb2.AbortRequest())
    assert (await span_log.first("CLIENT", ABORT)).status.status_code is StatusCode.ERROR


async def test_a_worker_stream_has_no_client_span(traced, span_log):
    call = verify_pb2_grpc.VerifyServiceStub(traced).Step(iter([verify_pb2.StepRequest(step_id=1)]))
    assert [response.step_id async for response in call] == [1]
    await span_log.first("SERVER", "worker.stream closed")
    assert {span.kind.name for span in span_log.spans} == {"SERVER"}


async def test_without_a_tracer_the_callers_context_is_still_passed_on(serve, span_log):
    running = await serve()
    parent = trace.NonRecordingSpan(
        trace.SpanContext(0xABC, 0xDEF, is_remote=True, trace_flags=trace.TraceFlags(1))
    )
    token = otel_context.attach(trace.set_span_in_context(parent))
    try:
        async with running.channel() as channel:
            await scheduler_pb2_grpc.SchedulerServiceStub(channel).Abort(scheduler_pb2.AbortRequest())
    finally:
        otel_context.detach(token)
    server = await span_log.first("SERVER", ABORT)
    assert (server.context.trace_id, server.parent.span_id) == (0xABC, 0xDEF)


async def test_a_traceparent_that_the_caller_gives_is_left_alone(serve, telemetry, span_log):
    running = await serve()
    async with create_channel(TargetConfig(address=running.address), tracer=telemetry.tracer) as channel:
        await scheduler_pb2_grpc.SchedulerServiceStub(channel).Abort(
            scheduler_pb2.AbortRequest(),
            metadata=(("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),),
        )
    server = await span_log.first("SERVER", ABORT)
    assert server.parent.span_id == 0xB7AD6B7169203331


async def test_many_concurrent_calls_end_each_their_own_span(traced, span_log):
    stub = scheduler_pb2_grpc.SchedulerServiceStub(traced)
    await asyncio.gather(*(stub.Abort(scheduler_pb2.AbortRequest()) for _ in range(50)))
    clients = {span.context.span_id for span in span_log.spans if span.kind.name == "CLIENT"}
    parents = {span.parent.span_id for span in span_log.spans if span.kind.name == "SERVER"}
    assert len(clients) == 50
    assert parents <= clients
