"""Export that never blocks and never hides a loss: a bounded queue, and a count of what was dropped."""

import logging
import threading
from collections.abc import Callable, Sequence

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

MAX_QUEUED_SPANS = 8192
# A batch is encoded under the interpreter's lock: 512 spans at once delay the event loop by 7 ms, 64 by 3.
MAX_BATCH_SPANS = 64
SCHEDULE_MS = 300

_logger = logging.getLogger("spearhead.telemetry")

CountDropped = Callable[[str, int], None]
"""Called with why spans were lost (``queue_full``, ``export_failed``, ``shutdown``) and how many."""


class BoundedSpanProcessor(SpanProcessor):
    """Hands ended spans to a thread that exports them in small batches.

    The SDK's own processor drops the oldest span when its queue is full and tells only a log. This one
    refuses the newest and counts it, so that its inner queue never overflows.
    """

    def __init__(self, exporter: SpanExporter, *, name: str, count_dropped: CountDropped) -> None:
        """Starts the thread.

        Args:
            exporter: Where batches go; called on the thread only.
            name: What the exporter is, for the log.
            count_dropped: Told about every span that is lost.
        """
        self._count_dropped = count_dropped
        self._queued = 0
        self._closed = False
        self._lock = threading.Lock()
        self._exporter = _CountingExporter(exporter, name, self._taken, count_dropped)
        self._batches = BatchSpanProcessor(
            self._exporter,
            max_queue_size=MAX_QUEUED_SPANS,
            max_export_batch_size=MAX_BATCH_SPANS,
            schedule_delay_millis=SCHEDULE_MS,
        )

    @property
    def queued(self) -> int:
        """Spans that wait to be exported."""
        return self._queued

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Nothing to do: only ended spans are exported."""

    def on_end(self, span: ReadableSpan) -> None:
        """Queues a sampled span, or counts it as dropped when the queue is full."""
        if span.context is None or not span.context.trace_flags.sampled:
            return
        with self._lock:
            refused = "shutdown" if self._closed else "queue_full" if self._queued >= MAX_QUEUED_SPANS else ""
            if not refused:
                self._queued += 1
        if refused:
            self._count_dropped(refused, 1)
        else:
            self._batches.on_end(span)

    def shutdown(self) -> None:
        """Exports what is queued; may block as long as the exporter does."""
        with self._lock:
            self._closed = True
        self._batches.shutdown()  # type: ignore[no-untyped-call]

    def abandon(self) -> int:
        """Lets a blocked :meth:`shutdown` end soon: what is queued will be dropped and counted.

        Returns:
            How many spans are queued.
        """
        self._exporter.abandoned.set()
        return self._queued

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Exports what is queued; blocks."""
        return self._batches.force_flush(timeout_millis)

    def _taken(self, count: int) -> None:
        with self._lock:
            self._queued -= count


class _CountingExporter(SpanExporter):
    def __init__(
        self, inner: SpanExporter, name: str, taken: Callable[[int], None], count_dropped: CountDropped
    ) -> None:
        self._inner = inner
        self._name = name
        self._taken = taken
        self._count_dropped = count_dropped
        self._failing = False
        self.abandoned = threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self._taken(len(spans))
        if self.abandoned.is_set():
            self._count_dropped("shutdown", len(spans))
            return SpanExportResult.FAILURE
        try:
            result = self._inner.export(spans)
            problem = "see the exporter's own log at level debug"
        except Exception as error:  # a broken exporter must not end the thread
            result, problem = SpanExportResult.FAILURE, repr(error)
        self._report(result is SpanExportResult.SUCCESS, problem, len(spans))
        return result

    def _report(self, success: bool, problem: str, count: int) -> None:
        if success:
            if self._failing:
                _logger.info("spans reach %s again", self._name)
        else:
            self._count_dropped("export_failed", count)
            if not self._failing:  # once an outage, not once a batch
                _logger.warning("spans cannot be exported to %s and are dropped: %s", self._name, problem)
        self._failing = not success

    def shutdown(self) -> None:
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._inner.force_flush(timeout_millis)
