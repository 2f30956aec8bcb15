"""Traces, metrics and logs of a service."""

from spearhead.telemetry.config import TelemetryConfig
from spearhead.telemetry.propagation import context_from_traceparent, traceparent_of
from spearhead.telemetry.setup import Telemetry
from spearhead.telemetry.stalls import STALL_SPAN
from spearhead.telemetry.traces import (
    ALWAYS_RECORDED,
    HAS_RECORDED_MEMBERS,
    STEPS_PER_ENGINE,
    record_span,
)

__all__ = [
    "ALWAYS_RECORDED",
    "HAS_RECORDED_MEMBERS",
    "STALL_SPAN",
    "STEPS_PER_ENGINE",
    "Telemetry",
    "TelemetryConfig",
    "context_from_traceparent",
    "record_span",
    "traceparent_of",
]
