"""Spans as OTLP JSON lines in a file, for machines without a collector.

A line is one ``ExportTraceServiceRequest`` in the OTLP/JSON encoding (ids in hex, enums as numbers,
64-bit integers as strings), which is what the OpenTelemetry collector's file exporter writes too.
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import SpanContext, format_span_id, format_trace_id

MAX_FILE_BYTES = 64 << 20
KEPT_FILES = 3


class FileSpanExporter(SpanExporter):
    """Appends batches to ``path``; at ``max_bytes`` it becomes ``path.1``, ``path.1`` becomes ``path.2``, ….

    Writes where it is called, so it belongs behind a processor with a thread of its own.
    """

    def __init__(self, path: Path, *, max_bytes: int = MAX_FILE_BYTES, kept_files: int = KEPT_FILES) -> None:
        """Opens the file.

        Args:
            path: The file; its folder is created.
            max_bytes: Size at which it is rotated.
            kept_files: Rotated files that are kept beside it.

        Raises:
            OSError: The file cannot be opened for writing.
        """
        self._path = path
        self._max_bytes = max_bytes
        self._kept_files = kept_files
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab")
        self._end_broken_line()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Writes one line."""
        line = json.dumps(encode_spans(spans), separators=(",", ":"), ensure_ascii=False).encode() + b"\n"
        if self._file.tell() and self._file.tell() + len(line) > self._max_bytes:
            self._rotate()
        self._file.write(line)
        self._file.flush()
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        """Closes the file."""
        self._file.close()

    def _end_broken_line(self) -> None:
        """A process that was killed may have left half a line, which must not spoil the next one."""
        if self._file.tell():
            with self._path.open("rb") as written:
                written.seek(-1, os.SEEK_END)
                if written.read() != b"\n":
                    self._file.write(b"\n")

    def _rotate(self) -> None:
        self._file.close()
        try:
            for number in range(self._kept_files - 1, 0, -1):
                older = self._numbered(number)
                if older.exists():
                    older.replace(self._numbered(number + 1))
            self._path.replace(self._numbered(1))
        finally:  # a file that grows too long is better than none
            self._file = self._path.open("ab")

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")


def encode_spans(spans: Sequence[ReadableSpan]) -> dict[str, Any]:
    """The batch as an OTLP/JSON ``ExportTraceServiceRequest``. All spans are of one provider."""
    by_scope: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for span in spans:
        scope = span.instrumentation_scope
        key = (scope.name, scope.version or "") if scope else ("", "")
        by_scope.setdefault(key, []).append(_span(span))
    scope_spans = [
        {"scope": {"name": name, **({"version": version} if version else {})}, "spans": encoded}
        for (name, version), encoded in by_scope.items()
    ]
    resource = {"attributes": _attributes(spans[0].resource.attributes)}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": scope_spans}]}


def _span(span: ReadableSpan) -> dict[str, Any]:
    encoded: dict[str, Any] = {
        **_ids(span.get_span_context()),
        "name": span.name,
        "kind": span.kind.value + 1,  # OTLP keeps 0 for "unspecified"
        "startTimeUnixNano": str(span.start_time),
        "endTimeUnixNano": str(span.end_time),
        "attributes": _attributes(span.attributes),
        "status": {"code": span.status.status_code.value},
    }
    if span.parent is not None:
        encoded["parentSpanId"] = format_span_id(span.parent.span_id)
    if span.status.description:
        encoded["status"]["message"] = span.status.description
    if span.events:
        encoded["events"] = [
            {"timeUnixNano": str(e.timestamp), "name": e.name, "attributes": _attributes(e.attributes)}
            for e in span.events
        ]
    if span.links:
        encoded["links"] = [
            {**_ids(link.context), "attributes": _attributes(link.attributes)} for link in span.links
        ]
    for key, count in (
        ("droppedAttributesCount", span.dropped_attributes),
        ("droppedEventsCount", span.dropped_events),
        ("droppedLinksCount", span.dropped_links),
    ):
        if count:
            encoded[key] = count
    return encoded


def _ids(context: SpanContext | None) -> dict[str, str]:
    assert context is not None  # every span of the SDK has one
    ids = {"traceId": format_trace_id(context.trace_id), "spanId": format_span_id(context.span_id)}
    if context.trace_state:
        ids["traceState"] = context.trace_state.to_header()
    return ids


def _attributes(attributes: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in (attributes or {}).items()]


def _value(value: Any) -> dict[str, Any]:
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case str():
            return {"stringValue": value}
        case bytes():
            return {"stringValue": value.decode("utf-8", "replace")}
        case _:
            return {"arrayValue": {"values": [_value(item) for item in value]}}
