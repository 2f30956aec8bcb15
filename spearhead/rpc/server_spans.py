"""A span and a metric for every RPC that a server runs, ended with the status that the caller got."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import grpc
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, SpanKind, Status, StatusCode

from spearhead.rpc import conventions
from spearhead.rpc.calls import Call, Proceed
from spearhead.telemetry import Telemetry, context_from_traceparent


class ServerSpanLayer:
    """Belongs outermost, so that it sees the final status."""

    def __init__(
        self, telemetry: Telemetry, *, address: Callable[[], str], worker_stream_methods: frozenset[str]
    ) -> None:
        """Takes what spans need.

        Args:
            telemetry: Where spans and metrics go.
            address: The server's address; asked at each call, since it is known only once bound.
            worker_stream_methods: Streams that get a short span at each end instead of one for their life.
        """
        self._telemetry = telemetry
        self._address = address
        self._worker_stream_methods = worker_stream_methods

    async def __call__(self, call: Call, proceed: Proceed) -> Any:
        """Runs the call inside its span."""
        if call.service in conventions.UNTRACED_SERVICES:
            return await proceed()
        start = time.monotonic()
        if call.method in self._worker_stream_methods:
            span: _CallSpan | _StreamSpans = _StreamSpans(self._telemetry.tracer, call, self._address())
        else:
            span = _CallSpan(self._telemetry.tracer, call, self._address())
        code = grpc.StatusCode.UNKNOWN
        try:
            response = await proceed()
            code = _set_code(call, grpc.StatusCode.OK)
            return response
        except asyncio.CancelledError:
            code = _cancel_code(call)
            raise
        except Exception:
            code = _set_code(call, grpc.StatusCode.UNKNOWN)
            raise
        finally:
            span.end(code)
            self._telemetry.base_metrics.observe_rpc(call.method, code.name, time.monotonic() - start)


class _CallSpan:
    """One span for the whole call; the current one while its handler runs."""

    def __init__(self, tracer: trace.Tracer, call: Call, address: str) -> None:
        parent = _parent(call)
        attributes = conventions.call_attributes(call.method, address)
        self._span = tracer.start_span(call.method, parent, SpanKind.SERVER, attributes)
        # Never detached: gRPC runs each call in a task of its own, whose context ends with it.
        otel_context.attach(trace.set_span_in_context(self._span, parent))

    def end(self, code: grpc.StatusCode) -> None:
        _end(self._span, code)


class _StreamSpans:
    """Two short spans, when the stream opens and when it closes."""

    def __init__(self, tracer: trace.Tracer, call: Call, address: str) -> None:
        self._tracer = tracer
        self._parent = _parent(call)
        self._attributes = conventions.call_attributes(call.method, address)
        self._start_ns = time.time_ns()
        self._opened = self._short_span("worker.stream opened")
        self._opened.end()

    def end(self, code: grpc.StatusCode) -> None:
        closed = self._short_span("worker.stream closed", [Link(self._opened.get_span_context())])
        closed.set_attribute("spearhead.stream.duration_ns", time.time_ns() - self._start_ns)
        _end(closed, code)

    def _short_span(self, name: str, links: list[Link] | None = None) -> trace.Span:
        return self._tracer.start_span(name, self._parent, SpanKind.SERVER, self._attributes, links)


def _parent(call: Call) -> Context:
    metadata = call.metadata
    context = context_from_traceparent(metadata.get("traceparent", ""), metadata.get("tracestate", ""))
    return context if context is not None else Context()


def _end(span: trace.Span, code: grpc.StatusCode) -> None:
    if span.is_recording():
        span.set_attribute(conventions.STATUS_CODE, code.name)
        if conventions.is_server_error(code):
            span.set_attribute(conventions.ERROR_TYPE, code.name)
            span.set_status(Status(StatusCode.ERROR, code.name))
    span.end()


def _set_code(call: Call, default: grpc.StatusCode) -> grpc.StatusCode:
    """The status that the handler set, which gRPC keeps as a number or as its own enum."""
    code = call.context.code()
    if isinstance(code, grpc.StatusCode):
        return code
    return next((known for known in grpc.StatusCode if known.value[0] == code and code), default)


def _cancel_code(call: Call) -> grpc.StatusCode:
    remaining_s = call.context.time_remaining()
    late = remaining_s is not None and remaining_s <= 0
    return grpc.StatusCode.DEADLINE_EXCEEDED if late else grpc.StatusCode.CANCELLED
