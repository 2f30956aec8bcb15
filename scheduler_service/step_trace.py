"""The spans of one step: a trace of its own, linked to the requests that share the step."""

from collections.abc import Mapping, Sequence

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanContext, SpanKind, Status, StatusCode, Tracer

from scheduler_service.request import Request
from scheduler_service.tracing import WallClock
from scheduler_service.worker_stream import Exchange, ReplyT
from spearhead.telemetry import HAS_RECORDED_MEMBERS, record_span, traceparent_of

VERIFY_METHOD = "spearhead.v1.VerifyService/Step"
DRAFT_METHOD = "spearhead.v1.DraftService/Propose"


def timing_attributes(exchange: Exchange[ReplyT]) -> dict[str, int]:
    """Where the time of a round trip went, nanoseconds, by the worker's own word: no clock is compared.

    With these the round trip can be taken apart even where the worker's own spans are lost with it.
    """
    timing = exchange.reply.timing
    return {
        "spearhead.worker.received_unix_ns": timing.received_unix_ns,
        "spearhead.worker.total_ns": timing.total_ns,
        "spearhead.worker.wait_ns": timing.queue_ns,
        "spearhead.worker.compute_ns": timing.compute_ns,
        "spearhead.worker.sample_ns": timing.sample_ns,
        "spearhead.worker.loop_lag_ns": int(exchange.loop_lag_s * 1e9),
    }


class CallSpan:
    """The CLIENT span of one message to a worker; its context travels in the message."""

    def __init__(self, span: Span, clock: WallClock) -> None:
        self._span = span
        self._clock = clock
        self.traceparent = traceparent_of(span)

    def end(self, now_s: float, error: str = "", attributes: Mapping[str, int] | None = None) -> None:
        """The reply is there, or never comes.

        Args:
            now_s: Now.
            error: Why there is no reply; empty = there is one.
            attributes: More to know.
        """
        if attributes:
            self._span.set_attributes(dict(attributes))
        if error:
            self._span.set_status(Status(StatusCode.ERROR, error))
        self._span.end(self._clock.unix_ns(now_s))


class StepTrace:
    """The spans of one step. Without a recorded member, nothing is recorded.

    Args:
        tracer: Where they go.
        clock: Converts times.
        step_id: The step.
        start_s: Its start, monotonic seconds.
        members: The requests that take part.
        name: Name of the root span.
    """

    def __init__(
        self,
        tracer: Tracer,
        clock: WallClock,
        *,
        step_id: int,
        start_s: float,
        members: Sequence[Request],
        name: str = "engine.step",
    ) -> None:
        self._tracer = tracer
        self._clock = clock
        # Taken now: applying the step moves requests on to their next span.
        self._targets = {
            request.sequence_id: (request.trace.link_target, request.trace.role)
            for request in members
            if request.trace.recording
        }
        sampled = any(request.trace.sampled for request in members if request.sequence_id in self._targets)
        self._root = (
            tracer.start_span(
                name,
                context=Context(),
                start_time=clock.unix_ns(start_s),
                attributes={HAS_RECORDED_MEMBERS: sampled},
            )
            if self._targets
            else trace.INVALID_SPAN
        )
        self.recording = self._root.is_recording()
        self._context = trace.set_span_in_context(self._root, Context())
        if self.recording:
            self._root.set_attribute("spearhead.step.id", step_id)

    @property
    def span_context(self) -> SpanContext | None:
        """What a request links to; ``None`` = nothing is recorded."""
        return self._root.get_span_context() if self.recording else None

    def part(self, name: str, start_s: float, end_s: float) -> None:
        """A part of the step in the scheduler itself."""
        if self.recording:
            record_span(
                self._tracer,
                name,
                start_ns=self._clock.unix_ns(start_s),
                end_ns=self._clock.unix_ns(end_s),
                parent=self._context,
            )

    def call(self, method: str, now_s: float) -> CallSpan:
        """Opens the span of a message to a worker, before it is sent."""
        if not self.recording:
            return CallSpan(trace.INVALID_SPAN, self._clock)
        span = self._tracer.start_span(
            method,
            context=self._context,
            kind=SpanKind.CLIENT,
            attributes={"rpc.system.name": "grpc", "rpc.method": method},
            start_time=self._clock.unix_ns(now_s),
        )
        return CallSpan(span, self._clock)

    def member(self, request: Request, attributes: Mapping[str, int]) -> None:
        """Links a request that took part, to the span that it was in when the step began."""
        target = self._targets.get(request.sequence_id)
        if self.recording and target is not None:
            span_context, role = target
            own: dict[str, int | str] = {
                "spearhead.request.id": request.request_id,
                "role": role,
                **attributes,
            }
            self._root.add_link(span_context, own)

    def end(self, now_s: float, attributes: Mapping[str, int | float | str], error: str = "") -> None:
        """The step is over."""
        if self.recording:
            self._root.set_attributes(dict(attributes))
            if error:
                self._root.set_status(Status(StatusCode.ERROR, error))
            self._root.end(self._clock.unix_ns(now_s))
