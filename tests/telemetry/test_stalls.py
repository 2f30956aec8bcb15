import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from spearhead.telemetry.stalls import LEAST_STALL_S, STALL_SPAN, TICK_S, StallWatch, record_stall
from spearhead.telemetry.traces import make_provider

TICK_NS, LEAST_NS = int(TICK_S * 1e9), int(LEAST_STALL_S * 1e9)


@pytest.fixture
def exporter():
    return InMemorySpanExporter()


@pytest.fixture
def tracer(exporter):
    return make_provider("test", 0.0, [SimpleSpanProcessor(exporter)]).get_tracer("test")


def test_a_long_stall_is_recorded_whatever_the_sample_ratio_is(tracer, exporter):
    record_stall(tracer, slept_ns=TICK_NS + 300_000_000, computed_ns=7)
    (span,) = exporter.get_finished_spans()
    assert span.name == STALL_SPAN
    assert span.end_time - span.start_time == 300_000_000
    assert span.attributes["spearhead.stall.cpu_ns"] == 7


def test_a_sleep_of_the_usual_length_is_no_stall(tracer, exporter):
    record_stall(tracer, slept_ns=TICK_NS + LEAST_NS - 1, computed_ns=0)
    assert exporter.get_finished_spans() == ()


def test_the_watch_ends_when_it_is_closed(tracer):
    watch = StallWatch(tracer)
    watch.close()
    assert not watch._thread.is_alive()
