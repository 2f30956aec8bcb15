"""A real process with a stream in flight gets real signals."""

import asyncio
import contextlib
import signal
import sys

import grpc
import pytest

from spearhead.errors import NotReady
from spearhead.rpc import TargetConfig, create_channel, error_from_rpc
from spearhead.rpc.calls import Call
from spearhead.rpc.drain import RunningCalls
from spearhead.v1 import scheduler_pb2, scheduler_pb2_grpc

SERVICE = """
import asyncio, sys
from dataclasses import dataclass, field
from spearhead.rpc import EndpointConfig, Server, main, run_until_signal
from spearhead.telemetry import Telemetry, TelemetryConfig
from spearhead.v1 import scheduler_pb2, scheduler_pb2_grpc

class Scheduler(scheduler_pb2_grpc.SchedulerServiceServicer):
    def __init__(self):
        self.release = asyncio.Event()

    async def Generate(self, request, context):
        yield scheduler_pb2.GenerateResponse()
        await self.release.wait()
        yield scheduler_pb2.GenerateResponse()

    async def Abort(self, request, context):
        self.release.set()
        return scheduler_pb2.AbortResponse()

@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    server: EndpointConfig = field(default_factory=EndpointConfig)
    telemetry: TelemetryConfig = field(default_factory=TelemetryConfig)
    release_on_drain: bool = True

async def run(config):
    telemetry = Telemetry.start("fake", config.telemetry)
    scheduler = Scheduler()
    async with Server(config.server, service_names=[], telemetry=telemetry) as server:
        scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(scheduler, server.grpc_server)
        print(await server.start(), flush=True)

        async def on_drain():
            print("draining", flush=True)
            if config.release_on_drain:
                scheduler.release.set()
            elif config.server.drain_s == 7.0:
                raise RuntimeError("the engine broke")

        await run_until_signal(server, on_drain=on_drain)
    telemetry.shutdown()
    print("ended", flush=True)

sys.exit(main("fake_service", Config, run))
"""


@pytest.fixture
async def service(tmp_path):
    """Starts the service above; what a test leaves running is killed."""
    script = tmp_path / "service.py"
    script.write_text(SERVICE)
    async with contextlib.AsyncExitStack() as stack:

        async def start(*overrides):
            sets = [part for override in overrides for part in ("--set", override)]
            process = await asyncio.create_subprocess_exec(
                sys.executable, str(script), *sets,
                stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
                env={"PYTHONPATH": ":".join(path for path in sys.path if path), "PATH": ""},
            )  # fmt: skip
            stack.push_async_callback(finish, process)
            assert process.stdout
            return process, (await process.stdout.readline()).decode().strip()

        yield start


async def finish(process):
    if process.returncode is None:
        process.kill()
        await process.wait()


async def opened_stream(channel):
    call = scheduler_pb2_grpc.SchedulerServiceStub(channel).Generate(scheduler_pb2.GenerateRequest())
    await call.read()
    return call


async def test_sigterm_in_the_middle_of_a_stream_lets_it_finish_and_exits_0(service):
    process, address = await service("server.drain_s=60", "telemetry.metrics_listen=127.0.0.1:0")
    async with create_channel(TargetConfig(address=address)) as channel, asyncio.timeout(60):
        call = await opened_stream(channel)
        process.send_signal(signal.SIGTERM)
        assert await call.read() == scheduler_pb2.GenerateResponse()
        assert await call.read() is grpc.aio.EOF
        output, log = await process.communicate()
    assert output.decode().split() == ["draining", "ended"]
    assert process.returncode == 0
    assert "SIGTERM: draining for at most 60 s" in log.decode()
    assert "Traceback" not in log.decode()


async def test_new_calls_during_the_drain_are_refused_as_not_ready(service):
    process, address = await service("server.drain_s=60", "release_on_drain=false")
    async with create_channel(TargetConfig(address=address)) as channel, asyncio.timeout(60):
        await opened_stream(channel)
        process.send_signal(signal.SIGINT)
        assert await process.stdout.readline() == b"draining\n"
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await scheduler_pb2_grpc.SchedulerServiceStub(channel).Abort(scheduler_pb2.AbortRequest())
        process.send_signal(signal.SIGTERM)
        await process.communicate()
    assert type(error_from_rpc(raised.value)) is NotReady


async def test_a_second_signal_stops_at_once_and_still_exits_0(service):
    process, address = await service("server.drain_s=3600", "release_on_drain=false")
    async with create_channel(TargetConfig(address=address)) as channel, asyncio.timeout(60):
        call = await opened_stream(channel)
        process.send_signal(signal.SIGTERM)
        assert await process.stdout.readline() == b"draining\n"
        process.send_signal(signal.SIGTERM)
        _, log = await process.communicate()
        with pytest.raises(grpc.aio.AioRpcError):
            await call.read()
    assert process.returncode == 0
    assert "SIGTERM again: stopping at once" in log.decode()
    assert "Traceback" not in log.decode()


async def test_the_drain_goes_on_when_the_services_own_part_fails(service):
    process, address = await service("server.drain_s=7.0", "release_on_drain=false")
    async with create_channel(TargetConfig(address=address)) as channel, asyncio.timeout(60):
        call = await opened_stream(channel)
        process.send_signal(signal.SIGTERM)
        assert await process.stdout.readline() == b"draining\n"
        call.cancel()
        _, log = await process.communicate()
    assert process.returncode == 0
    assert "the engine broke" in log.decode()


async def test_calls_are_counted_until_they_end_however_they_end():
    calls = RunningCalls()
    call = Call(method="a.B/C", metadata={}, context=None)
    release = asyncio.Event()

    async def wait():
        await release.wait()

    async def fail():
        await asyncio.sleep(0)  # the other two start
        raise ValueError

    first, second = (asyncio.ensure_future(calls(call, wait)) for _ in range(2))
    with pytest.raises(ValueError):
        await calls(call, fail)
    assert calls.count == 2
    assert not await calls.wait_idle(0.0)
    first.cancel()
    release.set()
    await asyncio.wait({first, second})
    assert calls.count == 0
    assert await calls.wait_idle(0.0)


async def test_probes_are_served_while_draining_and_do_not_count():
    calls = RunningCalls()
    calls.refuse_new()

    async def answer():
        return calls.count

    assert await calls(Call(method="grpc.health.v1.Health/Check", metadata={}, context=None), answer) == 0
    with pytest.raises(NotReady):
        await calls(Call(method="a.B/C", metadata={}, context=None), answer)


async def test_methods_that_a_drain_allows_are_served_and_counted_while_draining():
    calls = RunningCalls(frozenset({"a.B/Abort"}))
    calls.refuse_new()

    async def answer():
        return calls.count

    assert await calls(Call(method="a.B/Abort", metadata={}, context=None), answer) == 1
    with pytest.raises(NotReady):
        await calls(Call(method="a.B/Generate", metadata={}, context=None), answer)
