import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Link, NoOpTracer, SpanKind, StatusCode

from spearhead.telemetry import HAS_RECORDED_MEMBERS, record_span, traceparent_of
from spearhead.telemetry.traces import make_provider


@pytest.fixture
def exporter():
    return InMemorySpanExporter()


@pytest.fixture
def tracer(exporter):
    return make_provider("test", 1.0, [SimpleSpanProcessor(exporter)]).get_tracer("test")


def test_a_span_built_after_the_fact_has_the_times_it_is_given(tracer, exporter):
    record_span(
        tracer, "verify.forward", start_ns=1_000, end_ns=5_000, kind=SpanKind.SERVER,
        attributes={"spearhead.gpu.time_ns": 3_000, "spearhead.rows": (1, 2)},
    )  # fmt: skip
    (span,) = exporter.get_finished_spans()
    assert (span.name, span.kind, span.start_time, span.end_time) == (
        "verify.forward", SpanKind.SERVER, 1_000, 5_000,
    )  # fmt: skip
    assert dict(span.attributes) == {"spearhead.gpu.time_ns": 3_000, "spearhead.rows": (1, 2)}
    assert span.status.status_code is StatusCode.UNSET


def test_a_finished_span_can_be_a_parent(tracer, exporter):
    parent = record_span(tracer, "step", start_ns=1, end_ns=9)
    record_span(tracer, "forward", start_ns=2, end_ns=8, parent=parent)
    step, forward = exporter.get_finished_spans()
    assert forward.parent.span_id == step.context.span_id
    assert traceparent_of(parent).split("-")[2] == trace.format_span_id(step.context.span_id)


def test_without_a_parent_it_is_a_root_whatever_the_current_span_is(tracer, exporter):
    with tracer.start_as_current_span("current"):
        record_span(tracer, "step", start_ns=1, end_ns=2)
    assert exporter.get_finished_spans()[0].parent is None


def test_a_failure_is_an_error_with_its_reason(tracer, exporter):
    record_span(tracer, "step", start_ns=1, end_ns=2, status_error="RANK_FAILURE")
    (span,) = exporter.get_finished_spans()
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "RANK_FAILURE")


def test_a_step_keeps_the_links_and_rounds_of_a_large_batch(tracer, exporter):
    members = [record_span(tracer, "request", start_ns=1, end_ns=2) for _ in range(300)]
    links = [Link(trace.get_current_span(member).get_span_context(), {"tokens": 1}) for member in members]
    record_span(
        tracer, "engine.step", start_ns=1, end_ns=2, links=links,
        attributes={"spearhead.round.step_ids": tuple(range(5000))} | {f"k{i}": i for i in range(200)},
    )  # fmt: skip
    span = exporter.get_finished_spans()[-1]
    assert (len(span.links), span.dropped_links, span.dropped_attributes) == (300, 0, 0)
    assert len(span.attributes["spearhead.round.step_ids"]) == 5000


def test_a_request_keeps_more_events_than_the_sdks_default(tracer, exporter):
    span = tracer.start_span("request")
    for number in range(1000):
        span.add_event("preempted", {"number": number})
    span.end()
    assert (len(exporter.get_finished_spans()[0].events), span.dropped_events) == (1000, 0)


def test_nothing_is_recorded_without_a_recording_tracer():
    assert traceparent_of(record_span(NoOpTracer(), "step", start_ns=1, end_ns=2)) == ""


@pytest.mark.parametrize("sampler", ["always_off", "parentbased_always_off", "traceidratio"])
def test_the_environments_sampler_decides_about_all_but_steps_of_recorded_requests(
    exporter, monkeypatch, sampler
):
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.0")
    tracer = make_provider("test", 1.0, [SimpleSpanProcessor(exporter)]).get_tracer("test")
    tracer.start_span("unrelated").end()
    step = tracer.start_span("engine.step", attributes={HAS_RECORDED_MEMBERS: True})
    tracer.start_span("schedule", context=trace.set_span_in_context(step)).end()
    step.end()
    assert [span.name for span in exporter.get_finished_spans()] == ["schedule", "engine.step"]


def test_a_root_with_recorded_members_is_recorded_whatever_the_ratio(exporter):
    tracer = make_provider("test", 0.0, [SimpleSpanProcessor(exporter)]).get_tracer("test")
    tracer.start_span("unrelated").end()
    tracer.start_span("engine.step", attributes={HAS_RECORDED_MEMBERS: True}).end()
    assert [span.name for span in exporter.get_finished_spans()] == ["engine.step"]
