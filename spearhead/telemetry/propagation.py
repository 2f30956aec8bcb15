"""W3C trace context as one string, for messages that carry their own context."""

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

_PROPAGATOR = TraceContextTextMapPropagator()


def context_from_traceparent(value: str, tracestate: str = "") -> Context | None:
    """The context that ``value`` names, to be the parent of a span here.

    Args:
        value: A W3C ``traceparent``.
        tracestate: The W3C ``tracestate`` that came with it.

    Returns:
        ``None`` when ``value`` is empty or malformed: the caller does not trace.
    """
    carrier = {"traceparent": value}
    if tracestate:
        carrier["tracestate"] = tracestate
    context = _PROPAGATOR.extract(carrier, context=Context())
    return context if trace.get_current_span(context).get_span_context().is_valid else None


def traceparent_of(span_or_context: trace.Span | Context) -> str:
    """The W3C ``traceparent`` of a span, or of the span in a context.

    An ended span has one too: children may be built after their parent.

    Returns:
        Empty when the span is not sampled, so that a peer does not trace either.
    """
    if isinstance(span_or_context, Context):
        context = span_or_context
    else:
        context = trace.set_span_in_context(span_or_context, Context())
    if not trace.get_current_span(context).get_span_context().trace_flags.sampled:
        return ""
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier, context=context)
    return carrier.get("traceparent", "")
