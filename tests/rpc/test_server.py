import asyncio

import grpc
import pytest
from google.protobuf import descriptor_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from spearhead.errors import NotReady
from spearhead.rpc import EndpointConfig, Server, TargetConfig, create_channel, error_from_rpc
from spearhead.v1 import scheduler_pb2, scheduler_pb2_grpc


async def reflect(channel, request):
    call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(iter([request]))
    return await anext(aiter(call))


async def test_reflection_lists_the_services(serve):
    running = await serve()
    async with running.channel() as channel:
        answer = await reflect(channel, reflection_pb2.ServerReflectionRequest(list_services=""))
    names = {service.name for service in answer.list_services_response.service}
    assert names == {
        "spearhead.v1.SchedulerService", "spearhead.v1.VerifyService", "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
    }  # fmt: skip


async def test_reflection_describes_the_contract(serve):
    running = await serve()
    request = reflection_pb2.ServerReflectionRequest(file_containing_symbol="spearhead.v1.SchedulerService")
    async with running.channel() as channel:
        answer = await reflect(channel, request)
    files = [
        descriptor_pb2.FileDescriptorProto.FromString(data)
        for data in answer.file_descriptor_response.file_descriptor_proto
    ]
    assert "spearhead/v1/scheduler.proto" in {file.name for file in files}


async def test_the_health_port_answers_probes_in_plaintext_beside_tls(serve, certificates, tmp_path):
    token_file = tmp_path / "tokens"
    token_file.write_text("secret")
    running = await serve(
        tls_certificate=certificates.server, tls_key=certificates.server_key, tls_client_ca=certificates.ca,
        token_file=token_file, health_listen="127.0.0.1:0",
    )  # fmt: skip
    running.server.health.set_ready(True)
    async with create_channel(TargetConfig(address=running.server.health_address)) as channel:
        answer = await health_pb2_grpc.HealthStub(channel).Check(
            health_pb2.HealthCheckRequest(service="readiness")
        )
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await scheduler_pb2_grpc.SchedulerServiceStub(channel).Abort(scheduler_pb2.AbortRequest())
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
    assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_a_drain_lets_running_streams_finish_and_refuses_new_calls(serve, scheduler):
    running = await serve()
    running.server.health.set_ready(True)
    async with running.channel() as channel, asyncio.timeout(20):
        stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
        health = health_pb2_grpc.HealthStub(channel)
        stream = stub.Generate(scheduler_pb2.GenerateRequest())
        await stream.read()
        watch = health.Watch(health_pb2.HealthCheckRequest(service="readiness"))
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        drain = asyncio.ensure_future(running.server.drain(60.0))
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING

        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.Abort(scheduler_pb2.AbortRequest())
        alive = await health.Check(health_pb2.HealthCheckRequest(service="liveness"))
        assert not drain.done()
        scheduler.release.set()
        rest = [await stream.read(), await stream.read()]
        await drain  # the health watch, still open, does not hold it up
    error = error_from_rpc(refused.value)
    assert type(error) is NotReady
    assert error.retry_after_s == 1.0
    assert "shutting down" in error.message
    assert alive.status == health_pb2.HealthCheckResponse.SERVING
    assert rest == [scheduler_pb2.GenerateResponse(), grpc.aio.EOF]


async def test_calls_that_meet_the_end_of_a_server_are_told_to_come_back(serve):
    running = await serve()
    failures = []
    async with running.channel() as channel, asyncio.timeout(30):
        stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)

        async def call_on() -> None:
            while len(failures) < 200:
                try:
                    await stub.Abort(scheduler_pb2.AbortRequest())
                except grpc.aio.AioRpcError as failure:
                    failures.append(error_from_rpc(failure))

        callers = [asyncio.ensure_future(call_on()) for _ in range(16)]
        await asyncio.sleep(0.05)
        await running.server.drain(10.0)
        await asyncio.gather(*callers)
    assert {type(failure) for failure in failures} == {NotReady}


async def test_a_drain_ends_when_its_grace_does(serve, scheduler):
    running = await serve()
    async with running.channel() as channel, asyncio.timeout(20):
        stream = scheduler_pb2_grpc.SchedulerServiceStub(channel).Generate(scheduler_pb2.GenerateRequest())
        await stream.read()
        await running.server.drain(0.1)
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await stream.read()
        await scheduler.ended.wait()
    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_drain_without_calls_ends_at_once_and_can_be_repeated(serve):
    running = await serve()
    async with asyncio.timeout(20):
        await running.server.drain(60.0)
        await running.server.drain(60.0)


async def test_leaving_the_servers_context_stops_it(telemetry):
    async with Server(EndpointConfig(), service_names=[], telemetry=telemetry) as server:
        address = await server.start()
    async with create_channel(TargetConfig(address=address)) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_no_prompt_is_logged_at_any_level_or_put_on_a_span(serve, scheduler, span_log, caplog):
    running = await serve()
    scheduler.release.set()
    with caplog.at_level("DEBUG"):
        async with running.channel() as channel:
            stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
            async for _ in stub.Generate(scheduler_pb2.GenerateRequest(prompt="my private diary")):
                pass
            with pytest.raises(grpc.aio.AioRpcError):
                await stub.Abort(scheduler_pb2.AbortRequest(request_id="raise"))
    span = await span_log.first("SERVER", "spearhead.v1.SchedulerService/Generate")
    assert "INVALID_REQUEST" in caplog.text
    assert "private" not in caplog.text + span.to_json()
