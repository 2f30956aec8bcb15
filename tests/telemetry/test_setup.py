import asyncio
import logging
import os
import subprocess
import sys
import time

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from spearhead.errors import ConfigError
from spearhead.telemetry import Telemetry, TelemetryConfig, context_from_traceparent, traceparent_of

# Far above the 2 s that are promised, far below the 30 s that the SDK takes.
SHUTDOWN_BOUND_S = 5.0


def dropped(telemetry, reason):
    return telemetry.registry.get_sample_value("spearhead_trace_spans_dropped_total", {"reason": reason})


async def test_spans_reach_a_collector_with_the_services_name(start, collector):
    telemetry = start(otlp_endpoint=f"http://{collector.address}")
    with telemetry.tracer.start_as_current_span("work") as span:
        span.set_attribute("spearhead.rows", 3)
    await collector.wait_for(1)
    service, received = collector.spans[0]
    assert (service, received.name) == ("test_service", "work")
    assert received.trace_id.hex() == trace.format_trace_id(span.get_span_context().trace_id)
    assert [(item.key, item.value.int_value) for item in received.attributes] == [("spearhead.rows", 3)]


async def test_spans_travel_in_small_batches(start, collector):
    telemetry = start(otlp_endpoint=collector.address)  # without a scheme: plaintext
    for _ in range(500):
        telemetry.tracer.start_span("work").end()
    await collector.wait_for(500)
    assert max(collector.batch_sizes) <= 64


async def test_the_endpoint_of_the_environment_is_honoured(start, collector, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://{collector.address}")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "named-by-environment")
    start().tracer.start_span("work").end()
    await collector.wait_for(1)
    assert collector.spans[0][0] == "named-by-environment"


async def test_the_configured_endpoint_wins_over_the_environment(start, collector, monkeypatch, refusing):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://{refusing}")
    start(otlp_endpoint=collector.address).tracer.start_span("work").end()
    await collector.wait_for(1)


async def test_shutdown_exports_what_is_queued(start, collector):
    telemetry = start(otlp_endpoint=collector.address)
    for _ in range(10):
        telemetry.tracer.start_span("work").end()
    await asyncio.to_thread(telemetry.shutdown)  # the collector runs in this loop
    assert len(collector.spans) == 10


@pytest.mark.parametrize("kind", ["black_hole", "refusing"])
def test_a_dead_collector_delays_neither_spans_nor_shutdown(start, request, kind):
    telemetry = start(otlp_endpoint=request.getfixturevalue(kind))
    begin = time.monotonic()
    for _ in range(2000):
        telemetry.tracer.start_span("work").end()
    telemetry.shutdown()
    assert time.monotonic() - begin < SHUTDOWN_BOUND_S


@pytest.mark.parametrize("kind", ["black_hole", "refusing"])
def test_a_dead_collector_does_not_keep_the_process_alive(request, kind):
    script = (
        "import sys, time\n"
        "from spearhead.telemetry import Telemetry, TelemetryConfig\n"
        "telemetry = Telemetry.start('test', TelemetryConfig(otlp_endpoint=sys.argv[1]))\n"
        "for _ in range(2000): telemetry.tracer.start_span('work').end()\n"
        "begin = time.monotonic(); telemetry.shutdown(); print(begin)\n"
    )
    process = subprocess.run(
        [sys.executable, "-c", script, request.getfixturevalue(kind)],
        capture_output=True, check=True, timeout=60, env=os.environ | {"PYTHONPATH": "."},
    )  # fmt: skip
    assert time.monotonic() - float(process.stdout) < SHUTDOWN_BOUND_S
    assert b"dropped" in process.stderr


def test_an_outage_is_one_warning_and_a_count(start, refusing, caplog):
    telemetry = start(otlp_endpoint=refusing)
    for _ in range(200):
        telemetry.tracer.start_span("work").end()
    telemetry.shutdown()
    warnings = [record for record in caplog.records if "cannot be exported" in record.getMessage()]
    assert len(warnings) == 1
    assert refusing in warnings[0].getMessage()
    assert dropped(telemetry, "export_failed") > 0


def test_spans_after_the_shutdown_are_counted_not_kept(start, tmp_path):
    telemetry = start(trace_file=tmp_path / "t.jsonl")
    tracer = telemetry.tracer
    telemetry.shutdown()
    tracer.start_span("late").end()
    assert dropped(telemetry, "shutdown") == 1
    assert (tmp_path / "t.jsonl").read_bytes() == b""


def test_the_count_of_dropped_spans_is_there_before_the_first_loss(start):
    assert [dropped(start(), reason) for reason in ("queue_full", "export_failed", "shutdown")] == [0, 0, 0]


def test_shutdown_may_be_repeated(start, tmp_path):
    telemetry = start(trace_file=tmp_path / "t.jsonl", metrics_listen="127.0.0.1:0")
    telemetry.shutdown()
    telemetry.shutdown()
    assert telemetry.metrics_address is not None


def test_without_an_exporter_nothing_is_recorded_and_contexts_pass_through(start):
    tracer = start().tracer
    traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    span = tracer.start_span("work", context_from_traceparent(traceparent))
    assert not span.is_recording()
    assert traceparent_of(span) == traceparent


def test_tracing_that_cannot_be_set_up_is_one_warning_and_no_failure(start, tmp_path, caplog):
    (tmp_path / "file").write_text("")
    telemetry = start(trace_file=tmp_path / "file" / "t.jsonl")
    assert not telemetry.tracer.start_span("work").is_recording()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "tracing is off" in caplog.text


def test_an_otlp_protocol_that_is_not_spoken_is_said_not_ignored(start, monkeypatch, caplog):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    telemetry = start(otlp_endpoint="http://127.0.0.1:4318")
    assert not telemetry.tracer.start_span("work").is_recording()
    assert "http/protobuf" in caplog.text
    assert "OTEL_EXPORTER_OTLP_PROTOCOL=grpc" in caplog.text


def recording(config):
    exporter = InMemorySpanExporter()
    telemetry = Telemetry.start("test", config, span_processors=[SimpleSpanProcessor(exporter)])
    return telemetry, exporter


def test_roots_are_sampled_by_ratio_and_children_follow_their_parent():
    telemetry, exporter = recording(TelemetryConfig(sample_ratio=0.0))
    telemetry.tracer.start_span("root").end()
    parent = context_from_traceparent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    telemetry.tracer.start_span("child", parent).end()
    telemetry.shutdown()
    assert [span.name for span in exporter.get_finished_spans()] == ["child"]


def test_a_caller_that_does_not_sample_is_followed_at_ratio_1():
    telemetry, exporter = recording(TelemetryConfig(sample_ratio=1.0))
    parent = context_from_traceparent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00")
    span = telemetry.tracer.start_span("child", parent)
    span.end()
    telemetry.shutdown()
    assert exporter.get_finished_spans() == ()
    assert traceparent_of(span) == ""


def test_the_sampler_of_the_environment_is_honoured(monkeypatch):
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    telemetry, exporter = recording(TelemetryConfig(sample_ratio=1.0))
    telemetry.tracer.start_span("root").end()
    telemetry.shutdown()
    assert exporter.get_finished_spans() == ()


def test_disabled_telemetry_touches_neither_logging_nor_a_port():
    handlers = list(logging.getLogger().handlers)
    telemetry = Telemetry.disabled()
    telemetry.shutdown()
    assert logging.getLogger().handlers == handlers
    assert telemetry.metrics_address is None
    assert not telemetry.tracer.start_span("work").is_recording()


def test_two_telemetries_do_not_share_a_registry():
    first, second = Telemetry.disabled(), Telemetry.disabled()
    first.base_metrics.count_dropped_spans("queue_full", 2)
    assert (dropped(first, "queue_full"), dropped(second, "queue_full")) == (2, 0)


@pytest.mark.parametrize(
    ("values", "message"),
    [({"sample_ratio": 1.5}, "sample_ratio is 1.5"), ({"log_level": "loud"}, "log_level is 'loud'")],
)
def test_a_configuration_that_cannot_work_is_refused(values, message):
    with pytest.raises(ValueError, match=message):
        TelemetryConfig(**values)


def test_a_metrics_port_in_use_is_a_config_error(start):
    address = start(metrics_listen="127.0.0.1:0").metrics_address
    with pytest.raises(
        ConfigError, match=f"metrics_listen {address} cannot be bound: Address already in use"
    ):
        start(metrics_listen=address)
