import pytest
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider

from spearhead.telemetry import context_from_traceparent, traceparent_of

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_traceparent_survives_the_round_trip():
    context = context_from_traceparent(TRACEPARENT)
    assert context is not None
    span_context = trace.get_current_span(context).get_span_context()
    assert span_context.is_remote
    assert traceparent_of(context) == traceparent_of(trace.get_current_span(context)) == TRACEPARENT


@pytest.mark.parametrize(
    "value",
    [
        "",
        "nonsense",
        TRACEPARENT[:-3],
        f"00-{'0' * 32}-b7ad6b7169203331-01",
        f"ff{TRACEPARENT[2:]}",
        "é" * 55,
    ],
)
def test_no_or_a_malformed_traceparent_is_no_context(value):
    assert context_from_traceparent(value) is None


def test_the_current_span_does_not_leak_into_a_malformed_one():
    tracer = TracerProvider().get_tracer("test")
    with tracer.start_as_current_span("current"):
        assert context_from_traceparent("nonsense") is None


def test_an_ended_span_still_has_a_traceparent():
    span = TracerProvider().get_tracer("test").start_span("work")
    while_running = traceparent_of(span)
    span.end()
    assert traceparent_of(span) == while_running != ""


def test_a_span_that_is_not_sampled_has_none():
    context = context_from_traceparent(TRACEPARENT[:-1] + "0")
    assert context is not None
    assert traceparent_of(context) == ""


def test_no_span_has_none():
    assert traceparent_of(Context()) == traceparent_of(trace.INVALID_SPAN) == ""


def test_tracestate_is_kept():
    context = context_from_traceparent(TRACEPARENT, "vendor=1")
    assert context is not None
    assert trace.get_current_span(context).get_span_context().trace_state.get("vendor") == "1"
