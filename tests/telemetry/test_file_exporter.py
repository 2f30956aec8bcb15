import base64
import json

import pytest
from google.protobuf import json_format
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans as encode_protobuf
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Link, SpanKind, Status, StatusCode

from spearhead.telemetry import context_from_traceparent
from spearhead.telemetry.file_exporter import FileSpanExporter, encode_spans


def finished_spans():
    exporter = InMemorySpanExporter()
    provider = TracerProvider(
        resource=Resource({"service.name": "scheduler", "service.version": "1"}),
        span_limits=SpanLimits(max_events=1),
        shutdown_on_exit=False,
    )
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("spearhead", "0.1")
    parent = context_from_traceparent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "vendor=1")
    link = Link(trace.get_current_span(parent).get_span_context(), {"role": "decode", "tokens": 5})
    start_ns = 1_700_000_000_000
    span = tracer.start_span("engine.step", parent, SpanKind.CLIENT, links=[link], start_time=start_ns)
    span.set_attributes(
        {
            "flag": True, "count": -(2**62), "ratio": 0.1, "text": "Grüße 🙂\n", "empty": "",
            "ids": (1, 2, 2**62), "names": ("a", "b"), "flags": (True, False), "none": (),
        }
    )  # fmt: skip
    span.add_event("lost", timestamp=5)
    span.add_event("first_token", {"at": 1.5}, timestamp=6)
    span.set_status(Status(StatusCode.ERROR, "RANK_FAILURE"))
    span.end(start_ns + 999)
    provider.get_tracer("other").start_span("root", start_time=1).end(2)
    return exporter.get_finished_spans()


def as_protobuf(encoded):
    """Reads OTLP/JSON, whose ids are hex where protobuf's own JSON has base64."""

    def rewrite(value):
        if isinstance(value, list):
            return [rewrite(item) for item in value]
        if not isinstance(value, dict):
            return value
        return {
            key: base64.b64encode(bytes.fromhex(item)).decode()
            if key in ("traceId", "spanId", "parentSpanId")
            else rewrite(item)
            for key, item in value.items()
        }

    return json_format.ParseDict(rewrite(encoded), ExportTraceServiceRequest())


def test_a_line_says_what_the_otlp_exporter_would_send():
    spans = finished_spans()
    expected = encode_protobuf(spans)
    for resource_spans in expected.resource_spans:
        resource_spans.ClearField("schema_url")
        for scope_spans in resource_spans.scope_spans:
            for span in scope_spans.spans:
                span.flags = 0  # whether a parent or link is remote; nobody here reads it
                for link in span.links:
                    link.flags = 0
                    link.trace_state = "vendor=1"  # the SDK's encoder leaves it out
    assert as_protobuf(json.loads(json.dumps(encode_spans(spans)))) == expected


def test_a_batch_is_one_line_of_json(tmp_path):
    path = tmp_path / "folder" / "spans.jsonl"
    exporter = FileSpanExporter(path)
    exporter.export(finished_spans())
    exporter.export(finished_spans()[:1])
    exporter.shutdown()
    lines = path.read_text().splitlines()
    assert [len(json.loads(line)["resourceSpans"][0]["scopeSpans"]) for line in lines] == [2, 1]


def test_a_line_is_on_disk_before_the_next_batch(tmp_path):
    path = tmp_path / "spans.jsonl"
    exporter = FileSpanExporter(path)
    exporter.export(finished_spans())
    assert path.read_text().endswith("}\n")
    exporter.shutdown()


def test_an_existing_file_is_continued(tmp_path):
    path = tmp_path / "spans.jsonl"
    for _ in range(2):
        exporter = FileSpanExporter(path)
        exporter.export(finished_spans())
        exporter.shutdown()
    assert len(path.read_text().splitlines()) == 2


def test_files_rotate_by_size_and_only_so_many_are_kept(tmp_path):
    path = tmp_path / "spans.jsonl"
    spans = finished_spans()
    size = len(json.dumps(encode_spans(spans), separators=(",", ":"), ensure_ascii=False).encode()) + 1
    exporter = FileSpanExporter(path, max_bytes=2 * size, kept_files=2)
    for _ in range(9):
        exporter.export(spans)
    exporter.shutdown()
    counts = {file.name: len(file.read_text().splitlines()) for file in tmp_path.iterdir()}
    assert counts == {"spans.jsonl": 1, "spans.jsonl.1": 2, "spans.jsonl.2": 2}


def test_a_batch_larger_than_a_file_is_still_written_whole(tmp_path):
    path = tmp_path / "spans.jsonl"
    exporter = FileSpanExporter(path, max_bytes=1)
    exporter.export(finished_spans())
    exporter.shutdown()
    assert len(path.read_text().splitlines()) == 1


def test_a_file_that_cannot_be_opened_is_an_error(tmp_path):
    with pytest.raises(OSError):
        FileSpanExporter(tmp_path)


def test_telemetry_writes_its_spans_to_the_file(start, tmp_path):
    path = tmp_path / "spans.jsonl"
    telemetry = start(trace_file=path)
    for _ in range(100):
        telemetry.tracer.start_span("work").end()
    telemetry.shutdown()
    batches = [json.loads(line)["resourceSpans"][0] for line in path.read_text().splitlines()]
    assert sum(len(batch["scopeSpans"][0]["spans"]) for batch in batches) == 100
    assert {"key": "service.name", "value": {"stringValue": "test_service"}} in batches[0]["resource"][
        "attributes"
    ]


def test_half_a_line_of_a_killed_process_does_not_spoil_the_next_one(tmp_path):
    path = tmp_path / "traces.jsonl"
    path.write_bytes(b'{"resourceSpans": [')
    exporter = FileSpanExporter(path)
    exporter.export(finished_spans())
    exporter.shutdown()
    broken, whole = path.read_text().splitlines()
    assert broken == '{"resourceSpans": ['
    assert json.loads(whole)["resourceSpans"]


def test_an_exporter_that_could_not_rotate_goes_on_writing(tmp_path):
    path = tmp_path / "traces.jsonl"
    (tmp_path / "traces.jsonl.1").mkdir()
    exporter = FileSpanExporter(path, max_bytes=10, kept_files=1)
    exporter.export(finished_spans())
    with pytest.raises(OSError):
        exporter.export(finished_spans())
    (tmp_path / "traces.jsonl.1").rmdir()
    assert exporter.export(finished_spans()) is SpanExportResult.SUCCESS
    exporter.shutdown()
