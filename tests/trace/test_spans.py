import json

import pytest

from spearhead.errors import ConfigError
from spearhead.telemetry import record_span
from spearhead.telemetry.export import BoundedSpanProcessor
from spearhead.telemetry.file_exporter import FileSpanExporter
from spearhead.telemetry.traces import make_provider
from spearhead.trace.spans import integers, read_traces


def test_what_our_exporter_writes_is_read_back(tmp_path):
    path = tmp_path / "scheduler.jsonl"
    lost = []
    processor = BoundedSpanProcessor(
        FileSpanExporter(path), name="file", count_dropped=lambda *loss: lost.append(loss)
    )
    provider = make_provider("scheduler", 1.0, [processor])
    attributes = {"n": 2**62, "ratio": 0.5, "flag": True, "text": "Maß <b>", "ids": (1, 2)}
    record_span(
        provider.get_tracer("t"),
        "engine.step",
        start_ns=10,
        end_ns=30,
        attributes=attributes,
        status_error="lost",
    )
    provider.shutdown()
    (span,) = read_traces([path]).spans
    assert (span.name, span.start_ns, span.end_ns, span.error) == ("engine.step", 10, 30, "lost")
    assert span.service == "scheduler"
    assert len(span.instance) == 36
    assert {key: span.attributes[key] for key in attributes} == attributes
    assert integers(span.attributes, "ids") == (1, 2)
    assert lost == []


def test_a_span_that_is_in_two_files_counts_once_and_rotated_files_of_a_folder_are_found(story, tmp_path):
    story.step(1, 0.0, members={})
    story.write(tmp_path)
    copy = (tmp_path / "scheduler.jsonl").read_text()
    (tmp_path / "scheduler.jsonl.1").write_text(copy)
    assert len(read_traces([tmp_path]).spans) == len(read_traces([tmp_path / "scheduler.jsonl"]).spans) + 4


def test_lines_that_were_cut_off_are_passed_over_with_a_warning(story, tmp_path):
    story.step(1, 0.0, members={})
    whole = story.lines("scheduler")
    path = tmp_path / "cut.jsonl"
    path.write_text(whole[:200] + "\n" + whole + whole[:99])
    traces = read_traces([path])
    assert len(traces.spans) == 3
    assert traces.warnings == (f"{path}: 2 lines are passed over, the first is 1",)


@pytest.mark.parametrize("content", ["hello\n", '{"resourceSpans": 3}\n', "[]\n", "{}\n"])
def test_a_file_of_another_kind_is_refused_with_its_name_and_line(tmp_path, content):
    path = tmp_path / "other.jsonl"
    path.write_text(content)
    with pytest.raises(ConfigError, match=r"other\.jsonl, line 1, is not a line of OTLP JSON"):
        read_traces([path])


def test_a_missing_file_and_an_empty_folder_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_traces([tmp_path / "absent.jsonl"])
    with pytest.raises(ConfigError, match=r"no file that ends in \.jsonl"):
        read_traces([tmp_path])


def test_enum_names_as_some_collectors_write_them_are_understood(tmp_path):
    span = {
        "traceId": "aa", "spanId": "bb", "name": "x", "startTimeUnixNano": 1, "endTimeUnixNano": 2,
        "status": {"code": "STATUS_CODE_ERROR"},
    }  # fmt: skip
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}) + "\n")
    (read,) = read_traces([path]).spans
    assert (read.error, read.service) == ("failed", "unknown")
