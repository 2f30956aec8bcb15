import threading
from collections import Counter

import pytest
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import SpanKind, Status, StatusCode

from spearhead.telemetry import HAS_RECORDED_MEMBERS, record_span
from spearhead.telemetry.export import BoundedSpanProcessor
from spearhead.telemetry.slow import FIRST_TOKEN, LONGEST_GAP, SlowRule, SlowTraceKeeper
from spearhead.telemetry.traces import make_provider

RULE = SlowRule(itl_ms=20.0, ttft_ms=500.0)


class Kept(SpanExporter):
    def __init__(self):
        self.names = []

    def export(self, spans):
        self.names += [span.name for span in spans]
        return SpanExportResult.SUCCESS

    def shutdown(self):
        pass


class Gate(Kept):
    """Takes nothing until it is opened."""

    def __init__(self):
        super().__init__()
        self.opened = threading.Event()

    def export(self, spans):
        assert self.opened.wait(20.0)
        return super().export(spans)


class Recorder:
    """A scheduler that samples nothing and keeps what is slow."""

    def __init__(self, kept=None, **options):
        self.kept = kept or Kept()
        self.losses = Counter()
        bounded = BoundedSpanProcessor(self.kept, name="kept", count_dropped=self._lost)
        self.keeper = SlowTraceKeeper(RULE, [bounded], **options)
        self.provider = make_provider("test", 0.0, [self.keeper, bounded], record_all=True)
        self.tracer = self.provider.get_tracer("test")

    def _lost(self, reason, count):
        self.losses[reason] += count

    def request(self, name, *, gap_ms=1.0, ttft_s=0.01, start_ns=0, end_ns=100, error=False):
        root = self.tracer.start_span(name, context=Context(), kind=SpanKind.SERVER, start_time=start_ns)
        below = trace.set_span_in_context(root, Context())
        record_span(self.tracer, "decode", start_ns=start_ns, end_ns=end_ns, parent=below)
        root.set_attributes({LONGEST_GAP: int(gap_ms * 1e6), FIRST_TOKEN: ttft_s})
        if error:
            root.set_status(Status(StatusCode.ERROR))
        root.end(end_ns)

    def step(self, name, start_ns, end_ns):
        attributes = {HAS_RECORDED_MEMBERS: False}
        record_span(self.tracer, name, start_ns=start_ns, end_ns=end_ns, attributes=attributes)

    def exported(self):
        self.provider.shutdown()
        return self.kept.names


@pytest.fixture
def recorder():
    return Recorder()


@pytest.mark.parametrize("how", [{"gap_ms": 21.0}, {"ttft_s": 0.51}, {"error": True}])
def test_a_slow_or_failed_request_is_kept_with_its_parts(recorder, how):
    recorder.request("slow", **how)
    assert recorder.exported() == ["decode", "slow"]


def test_a_fast_request_leaves_nothing(recorder):
    recorder.step("engine.step", 0, 50)
    recorder.request("fast", gap_ms=20.0, ttft_s=0.5)
    assert recorder.exported() == []


def test_the_steps_in_the_time_of_a_slow_request_are_kept_once(recorder):
    recorder.step("before", 0, 10)
    recorder.step("during", 30, 40)
    recorder.request("slow", gap_ms=99.0, start_ns=20, end_ns=60)
    recorder.request("slow too", gap_ms=99.0, start_ns=20, end_ns=60)
    names = recorder.exported()
    assert (names.count("during"), names.count("before")) == (1, 0)
    assert {"slow", "slow too"} <= set(names)


def test_memory_is_bounded_by_forgetting_the_oldest_steps():
    recorder = Recorder(max_held=3)
    for number in range(10):
        recorder.step(f"step {number}", 10 * number, 10 * number + 5)
    recorder.request("slow", gap_ms=99.0, start_ns=0, end_ns=1000)
    assert recorder.exported() == ["decode", "step 7", "step 8", "step 9", "slow"]


def test_a_collector_that_takes_nothing_does_not_hold_up_the_end():
    gate = Gate()
    recorder = Recorder(gate, max_held=20_000)
    for number in range(12_000):
        recorder.step("engine.step", number, number + 1)
    recorder.request("slow", gap_ms=99.0, start_ns=0, end_ns=12_000)
    recorder.keeper.shutdown()
    assert recorder.losses["queue_full"] > 0
    gate.opened.set()
    recorder.provider.shutdown()


def test_more_spans_than_the_export_queue_holds_are_kept_without_loss():
    recorder = Recorder(max_held=20_000)
    for number in range(12_000):
        recorder.step("engine.step", number, number + 1)
    recorder.request("slow", gap_ms=99.0, start_ns=0, end_ns=12_000)
    assert len(recorder.exported()) == 12_002
    assert recorder.losses == {}
