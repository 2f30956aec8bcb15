"""Keeps the traces of slow requests that head sampling passed over.

Whether a request is slow is known at its end, so its spans and those of the steps around it are held in
memory until then. Workers learn no trace context of such a request; the scheduler's own spans say where they
spent the time.
"""

import queue
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.trace import SpanContext, SpanKind, StatusCode, TraceFlags

from spearhead.telemetry.export import MAX_QUEUED_SPANS, BoundedSpanProcessor

LONGEST_GAP = "spearhead.longest_gap_ns"
FIRST_TOKEN = "gen_ai.latency.time_to_first_token"
MAX_HELD_SPANS = 8192
"""Of steps; as many again of requests that still run."""
_PART = 64
_PAUSE_S = 0.002


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowRule:
    """Which requests are kept.

    Attributes:
        itl_ms: Those with a longer gap between outputs; ``None`` = whatever the gaps.
        ttft_ms: Those with a longer time to the first token; ``None`` = whatever that was.
    """

    itl_ms: float | None
    ttft_ms: float | None

    def keeps(self, request: ReadableSpan) -> bool:
        """Whether a request was slow, or failed, by the attributes of its ended span."""
        attributes = request.attributes or {}
        if request.status.status_code is StatusCode.ERROR:
            return True
        gap_ns, first_s = attributes.get(LONGEST_GAP), attributes.get(FIRST_TOKEN)
        late = self.itl_ms is not None and isinstance(gap_ns, int) and gap_ns > self.itl_ms * 1e6
        slow = self.ttft_ms is not None and isinstance(first_s, float) and first_s > self.ttft_ms / 1e3
        return late or slow


class SlowTraceKeeper(SpanProcessor):
    """Holds spans that are recorded and not sampled, and sends those of slow requests on.

    Copying and sending happen on a thread, a few spans at a time, so that the event loop does not notice.

    Args:
        rule: Which requests are kept.
        processors: Where they go.
        max_held: Most spans of steps to hold; the oldest are forgotten.
    """

    def __init__(
        self, rule: SlowRule, processors: Sequence[BoundedSpanProcessor], *, max_held: int = MAX_HELD_SPANS
    ) -> None:
        self._rule = rule
        self._processors = processors
        self._steps: deque[ReadableSpan] = deque(maxlen=max_held)
        self._requests: dict[int, list[ReadableSpan]] = {}
        self._request_span_count = 0
        self._max_held = max_held
        self._kept: queue.SimpleQueue[_Kept | None] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._send, daemon=True, name="slow-traces")
        self._thread.start()

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Nothing to do."""

    def on_end(self, span: ReadableSpan) -> None:
        """Holds a span, or decides about the request that it is."""
        if span.context is None or span.context.trace_flags.sampled:
            return
        if span.kind is SpanKind.SERVER:
            parts = self._requests.pop(span.context.span_id, [])
            self._request_span_count -= len(parts)
            if self._rule.keeps(span):
                self._kept.put(_Kept(request=span, parts=parts, steps=tuple(self._steps)))
        elif (
            span.parent is not None
            and not span.parent.is_remote
            and span.name in ("queue", "prefill", "decode")
        ):
            if self._request_span_count < self._max_held:
                self._requests.setdefault(span.parent.span_id, []).append(span)
                self._request_span_count += 1
        else:
            self._steps.append(span)

    def shutdown(self) -> None:
        """Sends on what was decided about, without waiting for an exporter that does not keep up."""
        self._closing.set()
        self._kept.put(None)
        self._thread.join()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Nothing waits here that has been decided about for long."""
        return True

    def _send(self) -> None:
        sent: set[int] = set()
        while (kept := self._kept.get()) is not None:
            around = [span for span in kept.around() if _span_id(span) not in sent]
            # Steps are shared by requests; those that no later snapshot can hold need no memory of them.
            held = {_span_id(span) for span in kept.steps}
            sent = (sent & held) | {_span_id(span) for span in around}
            spans = [*kept.parts, *around, kept.request]
            for start in range(0, len(spans), _PART):
                self._send_some(spans[start : start + _PART])

    def _send_some(self, spans: Sequence[ReadableSpan]) -> None:
        sampled = [_as_sampled(span) for span in spans]
        for processor in self._processors:
            while processor.queued > MAX_QUEUED_SPANS // 2 and not self._closing.is_set():
                time.sleep(_PAUSE_S)
            for span in sampled:
                processor.on_end(span)
        if not self._closing.is_set():
            time.sleep(_PAUSE_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """A slow request, its parts, and the steps that were held when it ended."""

    request: ReadableSpan
    parts: Sequence[ReadableSpan]
    steps: Sequence[ReadableSpan]

    def around(self) -> list[ReadableSpan]:
        """The steps in its time: those without it explain it too."""
        start_ns, end_ns = self.request.start_time or 0, self.request.end_time or 0
        return [s for s in self.steps if (s.start_time or 0) < end_ns and (s.end_time or 0) > start_ns]


def _span_id(span: ReadableSpan) -> int:
    context: SpanContext | None = span.get_span_context()
    assert context is not None  # every span of the SDK has one
    return context.span_id


def _as_sampled(span: ReadableSpan) -> ReadableSpan:
    context = span.context
    assert context is not None
    sampled = SpanContext(
        context.trace_id,
        context.span_id,
        context.is_remote,
        TraceFlags(TraceFlags.SAMPLED),
        context.trace_state,
    )
    return ReadableSpan(
        name=span.name,
        context=sampled,
        parent=span.parent,
        resource=span.resource,
        attributes=span.attributes,
        events=span.events,
        links=span.links,
        kind=span.kind,
        status=span.status,
        start_time=span.start_time,
        end_time=span.end_time,
        instrumentation_scope=span.instrumentation_scope,
    )
