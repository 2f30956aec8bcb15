"""Timings of one worker message, and the spans that are built from them afterwards."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from opentelemetry.trace import SpanKind, Tracer

from spearhead.telemetry import context_from_traceparent, record_span
from spearhead.v1 import types_pb2
from spearhead.worker.model_thread import Timed


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """When a message arrived, on both clocks."""

    monotonic_ns: int
    unix_ns: int

    @classmethod
    def now(cls) -> "Receipt":
        """Right now."""
        return cls(monotonic_ns=time.perf_counter_ns(), unix_ns=time.time_ns())


def worker_timing(receipt: Receipt, timed: Timed[Any], sample_ns: int) -> types_pb2.WorkerTiming:
    """Durations of one message; call it when the reply is about to be handed over."""
    return types_pb2.WorkerTiming(
        received_unix_ns=receipt.unix_ns,
        queue_ns=max(timed.started_ns - receipt.monotonic_ns, 0),
        compute_ns=timed.ended_ns - timed.started_ns,
        sample_ns=sample_ns,
        total_ns=time.perf_counter_ns() - receipt.monotonic_ns,
    )


def record_step_spans(
    tracer: Tracer,
    *,
    method: str,
    worker: str,
    traceparent: str,
    timing: types_pb2.WorkerTiming,
    attributes: Mapping[str, int | str | float],
) -> None:
    """Records the SERVER span of a message and its parts: wait, forward, accept or sample.

    Args:
        tracer: Where to record.
        method: Such as ``spearhead.v1.VerifyService/Step``.
        worker: ``verify`` or ``draft``; prefix of the parts' names.
        traceparent: From the message; empty = the caller does not trace, nothing is recorded.
        timing: Of the message.
        attributes: Of the SERVER span.
    """
    parent = context_from_traceparent(traceparent)
    if parent is None:
        return
    start = timing.received_unix_ns
    server = record_span(
        tracer, method, start_ns=start, end_ns=start + timing.total_ns, parent=parent, kind=SpanKind.SERVER,
        attributes={"rpc.system.name": "grpc", "rpc.method": method, **attributes},
    )  # fmt: skip
    forward = start + timing.queue_ns
    accept = forward + timing.compute_ns - timing.sample_ns
    end = forward + timing.compute_ns
    sampling = "accept" if worker == "verify" else "sample"
    for name, begin, finish in (
        ("wait", start, forward),
        ("forward", forward, accept),
        (sampling, accept, end),
    ):
        record_span(tracer, f"{worker}.{name}", start_ns=begin, end_ns=finish, parent=server)
