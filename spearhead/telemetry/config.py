"""The ``[telemetry]`` section of every service's configuration."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

LOG_LEVELS = ("debug", "info", "warning", "error", "critical")


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetryConfig:
    """Where spans, metrics and logs go.

    The variables that OpenTelemetry owns are honoured: ``OTEL_EXPORTER_OTLP_ENDPOINT`` (and the other
    ``OTEL_EXPORTER_OTLP_*``) where ``otlp_endpoint`` is unset, ``OTEL_SERVICE_NAME``,
    ``OTEL_RESOURCE_ATTRIBUTES``, ``OTEL_TRACES_SAMPLER`` and ``OTEL_SDK_DISABLED``.

    Attributes:
        otlp_endpoint: Collector that takes OTLP over gRPC, such as ``http://localhost:4317``; ``None`` =
            what the environment says, otherwise no export.
        trace_file: File for OTLP JSON lines; it rotates by size. ``None`` = no file.
        sample_ratio: Share of the traces that start here that are recorded, 0 to 1. A trace that started
            elsewhere follows its caller's decision.
        metrics_listen: ``host:port`` of the Prometheus endpoint; port 0 = any free one. ``None`` = none.
        log_level: One of ``LOG_LEVELS``.
        log_format: ``text`` for people, ``json`` for one object a line.
    """

    otlp_endpoint: str | None = None
    trace_file: Path | None = None
    sample_ratio: float = 1.0
    metrics_listen: str | None = None
    log_level: str = "info"
    log_format: Literal["text", "json"] = "text"

    def __post_init__(self) -> None:
        if not 0.0 <= self.sample_ratio <= 1.0:
            raise ValueError(f"sample_ratio is {self.sample_ratio}; it must be between 0 and 1")
        if self.log_level not in LOG_LEVELS:
            raise ValueError(f"log_level is {self.log_level!r}; it must be one of {', '.join(LOG_LEVELS)}")
