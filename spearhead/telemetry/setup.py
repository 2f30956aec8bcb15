"""One telemetry object a process: tracer, metrics registry, logging, and a bounded shutdown."""

import logging
import os
import threading
import time
from collections.abc import Sequence
from typing import Self

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter
from opentelemetry.trace import NoOpTracer, Tracer
from prometheus_client import CollectorRegistry

from spearhead.errors import ConfigError
from spearhead.telemetry.config import TelemetryConfig
from spearhead.telemetry.export import BoundedSpanProcessor
from spearhead.telemetry.file_exporter import FileSpanExporter
from spearhead.telemetry.logs import configure_logging
from spearhead.telemetry.metrics import BaseMetrics, MetricsServer
from spearhead.telemetry.slow import SlowRule, SlowTraceKeeper
from spearhead.telemetry.stalls import StallWatch
from spearhead.telemetry.traces import make_provider

EXPORT_TIMEOUT_S = 1.0
SHUTDOWN_S = 1.5

_logger = logging.getLogger("spearhead.telemetry")


class Telemetry:
    """What a service writes its telemetry to.

    Attributes:
        tracer: Records spans; records nothing when no exporter is configured, but still passes a caller's
            trace context on.
        registry: Prometheus registry of this process.
        base_metrics: The metrics that every service has.
        metrics_address: ``host:port`` of the metrics endpoint; ``None`` = not served.
    """

    def __init__(
        self, *, provider: TracerProvider | None, registry: CollectorRegistry, base_metrics: BaseMetrics,
        metrics_server: MetricsServer | None, processors: Sequence[BoundedSpanProcessor] = (),
    ) -> None:  # fmt: skip
        """Use :meth:`start` or :meth:`disabled`."""
        self.tracer: Tracer = provider.get_tracer("spearhead") if provider else NoOpTracer()
        self.registry = registry
        self.base_metrics = base_metrics
        self.metrics_address = metrics_server.address if metrics_server else None
        self._provider = provider
        self._metrics_server = metrics_server
        self._processors = processors
        self._stalls = StallWatch(self.tracer) if provider else None

    @classmethod
    def start(
        cls, service_name: str, config: TelemetryConfig, *, span_processors: Sequence[SpanProcessor] = ()
    ) -> Self:
        """Configures logging, opens exporters, serves metrics.

        Must run after any fork. Tracing that cannot be set up is left out with one warning.

        Args:
            service_name: Names the process in spans and logs.
            config: What goes where.
            span_processors: Further receivers of ended spans, beside the configured ones.

        Raises:
            ConfigError: ``metrics_listen`` cannot be bound.
        """
        configure_logging(service_name, config.log_level, config.log_format)
        registry = CollectorRegistry()
        base_metrics = BaseMetrics(registry)
        metrics_server = MetricsServer(config.metrics_listen, registry) if config.metrics_listen else None
        processors: list[BoundedSpanProcessor] = []
        provider = None
        try:
            processors = _make_processors(config, base_metrics)
            if processors or span_processors:
                keeper = _make_keeper(config, processors)
                # In front: it hands spans to the others when it shuts down.
                provider = make_provider(
                    service_name,
                    config.sample_ratio,
                    [*keeper, *processors, *span_processors],
                    record_all=bool(keeper),
                )
        except Exception as error:  # whatever it is: a service without traces is better than none
            _logger.warning("tracing is off, it could not be set up: %s: %s", type(error).__name__, error)
        return cls(
            provider=provider, registry=registry, base_metrics=base_metrics, metrics_server=metrics_server,
            processors=processors,
        )  # fmt: skip

    @classmethod
    def disabled(cls) -> Self:
        """Telemetry that goes nowhere and leaves logging alone."""
        registry = CollectorRegistry()
        return cls(provider=None, registry=registry, base_metrics=BaseMetrics(registry), metrics_server=None)

    def shutdown(self) -> None:
        """Exports what is queued and closes everything within ``SHUTDOWN_S``; drops and counts the rest."""
        deadline = time.monotonic() + SHUTDOWN_S
        if self._stalls is not None:
            self._stalls.close()
        # An exporter may block far beyond its own timeout, and daemon threads do not keep the process alive.
        threads = [
            threading.Thread(target=close, daemon=True, name="telemetry-shutdown")
            for close in (
                self._provider.shutdown if self._provider else None,
                self._metrics_server.close if self._metrics_server else None,
            )
            if close is not None
        ]
        self._provider = self._metrics_server = None
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if lost := sum(processor.abandon() for processor in self._processors):
            _logger.warning("%d spans could not be exported within %g s and are dropped", lost, SHUTDOWN_S)


def _make_processors(config: TelemetryConfig, base_metrics: BaseMetrics) -> list[BoundedSpanProcessor]:
    exporters: list[tuple[str, SpanExporter]] = []
    if endpoint := _otlp_endpoint(config):
        exporters.append((endpoint, OTLPSpanExporter(endpoint=endpoint, timeout=EXPORT_TIMEOUT_S)))
    if config.trace_file:  # in front, since providers shut down in this order and a file does not block
        exporters.insert(0, (str(config.trace_file), FileSpanExporter(config.trace_file)))
    return [
        BoundedSpanProcessor(exporter, name=name, count_dropped=base_metrics.count_dropped_spans)
        for name, exporter in exporters
    ]


def _make_keeper(
    config: TelemetryConfig, processors: Sequence[BoundedSpanProcessor]
) -> list[SlowTraceKeeper]:
    if not config.keeps_slow or not processors:
        return []
    rule = SlowRule(itl_ms=config.keep_slow_itl_ms, ttft_ms=config.keep_slow_ttft_ms)
    return [SlowTraceKeeper(rule, processors)]


def _otlp_endpoint(config: TelemetryConfig) -> str | None:
    endpoint = config.otlp_endpoint or _environment("ENDPOINT")
    if endpoint is None:
        return None
    protocol = _environment("PROTOCOL") or "grpc"
    if protocol != "grpc":
        raise ConfigError(
            f"the environment asks for the OTLP protocol {protocol}, and spans can only be sent by grpc; set "
            "OTEL_EXPORTER_OTLP_PROTOCOL=grpc and the collector's gRPC port (4317)"
        )
    # Without a scheme, the exporter would assume TLS.
    return endpoint if "://" in endpoint else f"http://{endpoint}"


def _environment(name: str) -> str | None:
    return os.environ.get(f"OTEL_EXPORTER_OTLP_TRACES_{name}") or os.environ.get(f"OTEL_EXPORTER_OTLP_{name}")
