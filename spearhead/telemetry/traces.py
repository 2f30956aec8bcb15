"""Spans: the provider with explicit limits, and spans that are built after the fact."""

import os
import uuid
from collections.abc import Mapping, Sequence

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import Decision, ParentBased, Sampler, SamplingResult, TraceIdRatioBased
from opentelemetry.trace import Link, SpanKind, Status, StatusCode
from opentelemetry.util.types import AttributeValue

# The SDK's defaults (128 each) drop data without a word: a step of 200 requests has 200 links.
SPAN_LIMITS = SpanLimits(
    max_span_attributes=256, max_events=4096, max_links=1024, max_event_attributes=64, max_link_attributes=64
)

HAS_RECORDED_MEMBERS = "spearhead.has_recorded_members"
"""Attribute of a root span, given at its start: spans of other traces that are recorded link to it."""

ALWAYS_RECORDED = "spearhead.always_recorded"
"""Attribute of a root span, given at its start: it is rare, and explains traces that are recorded."""

STEPS_PER_ENGINE = 1 << 40
"""A scheduler numbers the steps of its engine ``n`` from ``n * STEPS_PER_ENGINE + 1``: no two steps of it
share a number, and consecutive steps of one engine have consecutive numbers."""


def make_provider(
    service_name: str,
    sample_ratio: float,
    processors: Sequence[SpanProcessor],
    *,
    record_all: bool = False,
) -> TracerProvider:
    """A tracer provider of its own; nothing global is touched.

    Args:
        service_name: ``service.name``, unless ``OTEL_SERVICE_NAME`` says otherwise.
        sample_ratio: Share of root traces that are recorded.
        processors: What receives ended spans, in shutdown order.
        record_all: Also record what is not sampled, for processors that decide at the end.
    """
    name = os.environ.get("OTEL_SERVICE_NAME") or service_name
    provider = TracerProvider(
        # Two workers of one kind, or one before and after a restart, must not be taken for each other.
        resource=Resource.create({"service.name": name, "service.instance.id": str(uuid.uuid4())}),
        sampler=None
        if os.environ.get("OTEL_TRACES_SAMPLER")
        else ParentBased(TraceIdRatioBased(sample_ratio)),
        span_limits=SPAN_LIMITS,
        shutdown_on_exit=False,  # its atexit hook may block for 30 s
    )
    # Without one of ours, the SDK has read the variable and its argument.
    provider.sampler = _MembersFirst(provider.sampler, record_all=record_all)
    for processor in processors:
        provider.add_span_processor(processor)
    return provider


class _MembersFirst(Sampler):
    """Records a root that says that it must be, and all below it here; asks about the others."""

    def __init__(self, others: Sampler, *, record_all: bool) -> None:
        self._others = others
        self._record_all = record_all

    def should_sample(  # type: ignore[no-untyped-def]
        self, parent_context, trace_id, name, kind=None, attributes=None, links=None, trace_state=None
    ) -> SamplingResult:
        """Decides for one span; arguments as in the SDK."""
        parent = trace.get_current_span(parent_context).get_span_context()
        # A sampler that asks no parent would cut spans out of the middle of a trace that is recorded.
        below = parent.is_valid and not parent.is_remote and parent.trace_flags.sampled
        must = attributes and (attributes.get(HAS_RECORDED_MEMBERS) or attributes.get(ALWAYS_RECORDED))
        if below or must:
            return SamplingResult(Decision.RECORD_AND_SAMPLE, attributes, parent.trace_state)
        result = self._others.should_sample(
            parent_context, trace_id, name, kind, attributes, links, trace_state
        )
        if self._record_all and result.decision is Decision.DROP:
            return SamplingResult(Decision.RECORD_ONLY, attributes, result.trace_state)
        return result

    def get_description(self) -> str:
        """Names the sampler, for people."""
        return f"MembersFirst{{{self._others.get_description()}}}"


def record_span(
    tracer: trace.Tracer,
    name: str,
    *,
    start_ns: int,
    end_ns: int,
    parent: Context | None = None,
    kind: SpanKind = SpanKind.INTERNAL,
    attributes: Mapping[str, AttributeValue] | None = None,
    links: Sequence[Link] = (),
    status_error: str | None = None,
) -> Context:
    """Records a span that is already over, off the path that it measured.

    Args:
        tracer: Where to record.
        name: The span's name.
        start_ns: Start, Unix time in nanoseconds.
        end_ns: End, Unix time in nanoseconds.
        parent: Context of the parent; ``None`` = the span starts a trace of its own. The current span
            of the calling task is never the parent by accident.
        kind: The span's kind.
        attributes: The span's attributes.
        links: Spans that this one belongs to without being their child.
        status_error: Why it failed; ``None`` = it did not.

    Returns:
        A context with the ended span, to be the parent of further spans.
    """
    base = Context() if parent is None else parent
    span = tracer.start_span(
        name, context=base, kind=kind, attributes=attributes, links=links, start_time=start_ns
    )
    if status_error is not None:
        span.set_status(Status(StatusCode.ERROR, status_error))
    span.end(end_ns)
    return trace.set_span_in_context(span, base)
