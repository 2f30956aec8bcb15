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
        keep_slow_itl_ms: A request that ``sample_ratio`` passed over is recorded all the same if it waited
            longer than this between two outputs, or if it failed. ``None`` = not for that.
        keep_slow_ttft_ms: Likewise, if it waited longer than this for the first one.
        metrics_listen: ``host:port`` of the Prometheus endpoint; port 0 = any free one. ``None`` = none.
        log_level: One of ``LOG_LEVELS``.
        log_format: ``text`` for people, ``json`` for one object a line.
    """

    otlp_endpoint: str | None = None
    trace_file: Path | None = None
    sample_ratio: float = 1.0
    keep_slow_itl_ms: float | None = None
    keep_slow_ttft_ms: float | None = None
    metrics_listen: str | None = None
    log_level: str = "info"
    log_format: Literal["text", "json"] = "text"

    @property
    def keeps_slow(self) -> bool:
        """Whether requests are recorded for being slow."""
        return self.keep_slow_itl_ms is not None or self.keep_slow_ttft_ms is not None

    def refuse_slow_rules(self) -> None:
        """For services that do not see whole requests.

        Raises:
            ValueError: Requests are to be recorded for being slow.
        """
        if self.keeps_slow:
            raise ValueError(
                "telemetry.keep_slow_itl_ms and keep_slow_ttft_ms have no effect here: only the scheduler "
                "sees whole requests; set them in its file"
            )

    def __post_init__(self) -> None:
        if not 0.0 <= self.sample_ratio <= 1.0:
            raise ValueError(f"sample_ratio is {self.sample_ratio}; it must be between 0 and 1")
        for name in ("keep_slow_itl_ms", "keep_slow_ttft_ms"):
            limit = getattr(self, name)
            if limit is not None and not limit > 0:
                raise ValueError(f"{name} is {limit}; it must be more than 0, or left out")
        if self.log_level not in LOG_LEVELS:
            raise ValueError(f"log_level is {self.log_level!r}; it must be one of {', '.join(LOG_LEVELS)}")
