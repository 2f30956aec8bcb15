"""Telemetry that is always shut down, collectors of every temper, and logging put back as it was."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable, Iterator

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from spearhead.telemetry import Telemetry, TelemetryConfig

PATIENCE_S = 20.0


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of the machine that runs the tests changes what they see."""
    for name in (
        "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_PROTOCOL",
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_SERVICE_NAME", "OTEL_TRACES_SAMPLER", "OTEL_SDK_DISABLED",
    ):  # fmt: skip
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def logging_restored() -> Iterator[None]:
    names = (None, "grpc", "opentelemetry", "asyncio")
    levels = {name: logging.getLogger(name).level for name in names}
    handlers = list(logging.getLogger().handlers)
    yield
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    root = logging.getLogger()
    for handler in [handler for handler in root.handlers if handler not in handlers]:
        root.removeHandler(handler)


@pytest.fixture
def start() -> Iterator[Callable[..., Telemetry]]:
    started: list[Telemetry] = []

    def start(**config: object) -> Telemetry:
        started.append(Telemetry.start("test_service", TelemetryConfig(**config)))
        return started[-1]

    yield start
    for telemetry in started:
        telemetry.shutdown()


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Keeps what it is sent."""

    def __init__(self) -> None:
        self.address = ""
        self.batch_sizes: list[int] = []
        self.spans: list[tuple[str, object]] = []
        self._more = asyncio.Event()

    async def Export(self, request, context):  # noqa: N802
        for resource_spans in request.resource_spans:
            attributes = {item.key: item.value.string_value for item in resource_spans.resource.attributes}
            found = [span for scope in resource_spans.scope_spans for span in scope.spans]
            self.batch_sizes.append(len(found))
            self.spans.extend((attributes["service.name"], span) for span in found)
        self._more.set()
        return trace_service_pb2.ExportTraceServiceResponse()

    async def wait_for(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while len(self.spans) < count:
                self._more.clear()
                await self._more.wait()


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    collector = Collector()
    server = grpc.aio.server()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)
    collector.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    yield collector
    await server.stop(None)


@pytest.fixture
def black_hole() -> Iterator[str]:
    """Accepts connections and never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def refusing() -> Iterator[str]:
    """An address where nobody listens, held so that nobody can."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{holder.getsockname()[1]}"
