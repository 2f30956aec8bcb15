"""The client's side of a call as a span that ends however the call ends."""

import grpc
from opentelemetry import trace
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from spearhead.rpc import conventions

_PROPAGATOR = TraceContextTextMapPropagator()


class CallSpan:
    """A running client span; end it once."""

    def __init__(self, span: trace.Span) -> None:
        """Takes the span.

        Args:
            span: Started, not ended.
        """
        self._span = span

    def end_with(self, call: grpc.aio.Call) -> None:
        """Ends it with the status of a finished call."""
        if self._span.is_recording():
            self._set_code(_final_code(call))
        self._span.end()

    def fail(self, error: BaseException) -> None:
        """Ends it for a call that could not start."""
        self._span.record_exception(error)
        self._span.set_status(Status(StatusCode.ERROR, type(error).__name__))
        self._span.end()

    def _set_code(self, code: grpc.StatusCode) -> None:
        self._span.set_attribute(conventions.STATUS_CODE, code.name)
        if code is not grpc.StatusCode.OK:
            self._span.set_attribute(conventions.ERROR_TYPE, code.name)
            self._span.set_status(Status(StatusCode.ERROR, code.name))


def _final_code(call: grpc.aio.Call) -> grpc.StatusCode:
    """The status of a call that is done; ``code()`` is a coroutine, but has nothing left to wait for.

    Run by hand, since a call may be finished by the garbage collector, with no event loop to run it.
    """
    coroutine = call.code()
    try:
        coroutine.send(None)
    except StopIteration as result:
        code: grpc.StatusCode = result.value
        return code
    coroutine.close()
    return grpc.StatusCode.UNKNOWN


def start_call_span(
    tracer: trace.Tracer, method: str, address: str, metadata: list[tuple[str, str | bytes]]
) -> CallSpan:
    """Starts the span of a call, child of the current span, and adds its context to ``metadata``.

    Args:
        tracer: Records it.
        method: ``package.Service/Method``.
        address: The server's.
        metadata: The call's; a ``traceparent`` that the caller put in already is left as it is.
    """
    span = tracer.start_span(
        method, kind=SpanKind.CLIENT, attributes=conventions.call_attributes(method, address)
    )
    if not any(key == "traceparent" for key, _ in metadata):
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier, context=trace.set_span_in_context(span))
        metadata.extend(carrier.items())
    return CallSpan(span)
