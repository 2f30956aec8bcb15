"""Real servers on loopback, with the services' own stubs, and a log of their spans."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass

import grpc
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from spearhead.errors import InvalidRequest, SpearheadError
from spearhead.rpc import EndpointConfig, Server, TargetConfig, create_channel
from spearhead.rpc.conventions import WORKER_STREAM_METHODS
from spearhead.telemetry import Telemetry, TelemetryConfig
from spearhead.v1 import scheduler_pb2, scheduler_pb2_grpc, verify_pb2, verify_pb2_grpc
from tests.certificates import Certificates, make_certificates

SCHEDULER = "spearhead.v1.SchedulerService"
VERIFY = "spearhead.v1.VerifyService"
PATIENCE_S = 20.0


class SpanLog(SpanExporter):
    """Ended spans, and a way to wait for one."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []
        self._more = asyncio.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.spans.extend(spans)
        self._more.set()
        return SpanExportResult.SUCCESS

    async def first(self, kind: str, name: str) -> ReadableSpan:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                for span in self.spans:
                    if span.kind.name == kind and span.name == name:
                        return span
                self._more.clear()
                await self._more.wait()


class Scheduler(scheduler_pb2_grpc.SchedulerServiceServicer):
    """Whatever a test needs a handler to do, chosen by the request id."""

    def __init__(self) -> None:
        self.error: SpearheadError = InvalidRequest("x is 0; it must be 1 or more")
        self.release = asyncio.Event()
        self.ended = asyncio.Event()
        self.log: list[str] = []

    async def Generate(self, request, context):  # noqa: N802
        try:
            yield scheduler_pb2.GenerateResponse()
            await self.release.wait()
            yield scheduler_pb2.GenerateResponse()
        finally:
            self.log.append("closed")
            self.ended.set()

    async def Abort(self, request, context):  # noqa: N802
        match request.request_id:
            case "raise":
                raise self.error
            case "bug":
                raise KeyError("a secret of this machine")
            case "abort":
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "full")
            case "cancelled within":
                raise asyncio.CancelledError
            case "wait":
                self.log.append("waiting")
                await self.release.wait()
        return scheduler_pb2.AbortResponse()


class Verify(verify_pb2_grpc.VerifyServiceServicer):
    """Echoes step ids, as an async generator."""

    async def Step(self, request_iterator, context):  # noqa: N802
        async for request in request_iterator:
            yield verify_pb2.StepResponse(step_id=request.step_id)


@dataclass
class Running:
    server: Server
    address: str

    def channel(self, **target: object) -> grpc.aio.Channel:
        return create_channel(TargetConfig(address=self.address, **target))


Serve = Callable[..., Awaitable[Running]]


@pytest.fixture
async def span_log() -> SpanLog:
    return SpanLog()


@pytest.fixture
async def telemetry(span_log: SpanLog) -> AsyncIterator[Telemetry]:
    telemetry = Telemetry.start("test", TelemetryConfig(), span_processors=[SimpleSpanProcessor(span_log)])
    yield telemetry
    telemetry.shutdown()


@pytest.fixture
async def scheduler() -> Scheduler:
    return Scheduler()


@pytest.fixture
async def serve(telemetry: Telemetry, scheduler: Scheduler) -> AsyncIterator[Serve]:
    """Starts a server with a scheduler and a verify servicer; stops it after the test."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(
            *, scheduler: Scheduler = scheduler, verify: verify_pb2_grpc.VerifyServiceServicer | None = None,
            worker_stream_methods: frozenset[str] = WORKER_STREAM_METHODS, **endpoint: object,
        ) -> Running:  # fmt: skip
            server = Server(
                EndpointConfig(**endpoint),
                service_names=[SCHEDULER, VERIFY],
                telemetry=telemetry,
                worker_stream_methods=worker_stream_methods,
            )
            await stack.enter_async_context(server)
            scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(scheduler, server.grpc_server)
            verify_pb2_grpc.add_VerifyServiceServicer_to_server(verify or Verify(), server.grpc_server)
            return Running(server, await server.start())

        yield start


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))
