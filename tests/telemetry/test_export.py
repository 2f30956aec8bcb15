import threading

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from spearhead.telemetry.export import MAX_QUEUED_SPANS, BoundedSpanProcessor

PATIENCE_S = 20.0


class Gate(SpanExporter):
    """Blocks each export until it is opened; then answers ``result``."""

    def __init__(self, result=SpanExportResult.SUCCESS):
        self.result = result
        self.entered = threading.Event()
        self.opened = threading.Event()
        self.exported = 0

    def export(self, spans):
        self.entered.set()
        assert self.opened.wait(PATIENCE_S)
        if isinstance(self.result, Exception):
            raise self.result
        self.exported += len(spans)
        return self.result


class Losses:
    def __init__(self):
        self.counts = {}

    def __call__(self, reason, count):
        self.counts[reason] = self.counts.get(reason, 0) + count


@pytest.fixture
def gate():
    gate = Gate()
    yield gate
    gate.opened.set()


@pytest.fixture
def losses():
    return Losses()


@pytest.fixture
def provider(gate, losses):
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BoundedSpanProcessor(gate, name="the gate", count_dropped=losses))
    return provider


def end_spans(provider, count):
    tracer = provider.get_tracer("test")
    for _ in range(count):
        tracer.start_span("work").end()


def test_spans_beyond_the_queue_are_refused_and_counted_one_by_one(provider, gate, losses):
    end_spans(provider, 64)
    assert gate.entered.wait(PATIENCE_S)  # the thread holds a batch now, which is out of the queue
    end_spans(provider, MAX_QUEUED_SPANS + 10)
    assert losses.counts == {"queue_full": 10}
    gate.opened.set()
    provider.shutdown()
    assert gate.exported == MAX_QUEUED_SPANS + 64
    assert losses.counts == {"queue_full": 10}


@pytest.mark.parametrize("result", [SpanExportResult.FAILURE, RuntimeError("broken")])
def test_failed_exports_are_counted_and_warned_about_once(provider, gate, losses, result, caplog):
    gate.result = result
    gate.opened.set()
    end_spans(provider, 200)
    provider.shutdown()
    assert losses.counts == {"export_failed": 200}
    assert len(caplog.records) == 1
    assert "the gate" in caplog.text


def test_the_end_of_an_outage_is_told(provider, gate, losses, caplog):
    caplog.set_level("INFO")
    gate.opened.set()
    gate.result = SpanExportResult.FAILURE
    end_spans(provider, 1)
    provider.force_flush()
    gate.result = SpanExportResult.SUCCESS
    end_spans(provider, 1)
    provider.shutdown()
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert "reach the gate again" in caplog.text


def test_an_abandoned_queue_is_counted_not_exported(losses):
    gate = Gate()
    processor = BoundedSpanProcessor(gate, name="the gate", count_dropped=losses)
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(processor)
    end_spans(provider, 64)
    assert gate.entered.wait(PATIENCE_S)
    end_spans(provider, 100)
    assert processor.abandon() == 100
    gate.opened.set()
    provider.shutdown()
    assert (gate.exported, losses.counts) == (64, {"shutdown": 100})


def test_spans_that_are_not_sampled_take_no_room(losses):
    gate = Gate()
    provider = TracerProvider(shutdown_on_exit=False, sampler=ALWAYS_OFF)
    provider.add_span_processor(BoundedSpanProcessor(gate, name="the gate", count_dropped=losses))
    end_spans(provider, MAX_QUEUED_SPANS + 1)
    provider.shutdown()
    assert losses.counts == {}
