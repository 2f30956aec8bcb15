"""Spans as the services write them: OTLP JSON lines, of any number of files and services."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spearhead.errors import ConfigError

Scalar = str | bool | int | float
AttributeValue = Scalar | tuple[Scalar, ...]
Attributes = Mapping[str, AttributeValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A span of another trace that a span belongs to.

    Attributes:
        trace_id: Its trace, in hexadecimal; so are all ids here.
        span_id: The span.
        attributes: What is known of the relation.
    """

    trace_id: str
    span_id: str
    attributes: Attributes


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened within a span.

    Attributes:
        name: What.
        time_ns: Unix time, nanoseconds.
        attributes: More about it.
    """

    name: str
    time_ns: int
    attributes: Attributes


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One span.

    Attributes:
        trace_id: Its trace.
        span_id: Its own id.
        parent_id: Of its parent; empty = it is a root.
        name: Its name.
        start_ns: Unix time by its service's clock, nanoseconds.
        end_ns: Likewise.
        attributes: Its attributes.
        links: Its links.
        events: Its events.
        error: Why it failed; empty = it did not.
        service: ``service.name``.
        instance: ``service.instance.id``; empty = unknown.
    """

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    start_ns: int
    end_ns: int
    attributes: Attributes
    links: tuple[Link, ...]
    events: tuple[Event, ...]
    error: str
    service: str
    instance: str

    @property
    def process(self) -> str:
        """The process that wrote it: the instance, or the service where that is unknown."""
        return self.instance or self.service

    @property
    def duration_ns(self) -> int:
        """Its length by its own clock."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Traces:
    """What some files hold.

    Attributes:
        spans: In the order of their start; one that was found twice counts once.
        warnings: What was wrong with the files.
    """

    spans: tuple[Span, ...]
    warnings: tuple[str, ...] = ()


def read_traces(paths: Sequence[Path]) -> Traces:
    """Reads trace files; the order of files and lines does not matter.

    A line that was cut off, since its service was killed or still writes, is passed over with a warning.

    Args:
        paths: Files of OTLP JSON lines; of a folder, every ``*.jsonl`` and ``*.jsonl.N`` in it.

    Raises:
        ConfigError: A file cannot be read, or holds no such line at all.
    """
    spans: dict[tuple[str, str], Span] = {}
    warnings = []
    for path in _files(paths):
        found, broken = _read(path)
        for span in found:
            spans.setdefault((span.trace_id, span.span_id), span)
        if broken:
            warnings.append(f"{path}: {len(broken)} lines are passed over, the first is {broken[0]}")
    ordered = sorted(spans.values(), key=lambda span: span.start_ns)
    return Traces(spans=tuple(ordered), warnings=tuple(warnings))


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        found = sorted({*path.glob("*.jsonl"), *path.glob("*.jsonl.[0-9]*")})
        if not found:
            raise ConfigError(f"{path} holds no file that ends in .jsonl; name the trace files themselves")
        yield from found


def _read(path: Path) -> tuple[list[Span], list[int]]:
    """Its spans, and the numbers of the lines that are none."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from error
    spans: list[Span] = []
    broken, problem = [], ""
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                spans += _spans(json.loads(line))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                broken.append(number)
                problem = problem or repr(error)
    if broken and not spans:
        raise ConfigError(
            f"{path}, line {broken[0]}, is not a line of OTLP JSON ({problem}); give the files that "
            "telemetry.trace_file names, or those of the collector's file exporter"
        )
    return spans, broken


def _spans(document: Mapping[str, Any]) -> Iterator[Span]:
    for resource_spans in document["resourceSpans"]:
        resource = _attributes(resource_spans.get("resource", {}).get("attributes", ()))
        service = str(resource.get("service.name", "unknown"))
        instance = str(resource.get("service.instance.id", ""))
        for scope_spans in resource_spans.get("scopeSpans", ()):
            for encoded in scope_spans.get("spans", ()):
                yield _span(encoded, service, instance)


def _span(encoded: Mapping[str, Any], service: str, instance: str) -> Span:
    status = encoded.get("status", {})
    failed = status.get("code") in (2, "STATUS_CODE_ERROR")
    return Span(
        trace_id=encoded["traceId"],
        span_id=encoded["spanId"],
        parent_id=encoded.get("parentSpanId", ""),
        name=encoded["name"],
        start_ns=int(encoded["startTimeUnixNano"]),
        end_ns=int(encoded["endTimeUnixNano"]),
        attributes=_attributes(encoded.get("attributes", ())),
        links=tuple(
            Link(
                trace_id=link["traceId"],
                span_id=link["spanId"],
                attributes=_attributes(link.get("attributes", ())),
            )
            for link in encoded.get("links", ())
        ),
        events=tuple(
            Event(
                name=event["name"],
                time_ns=int(event["timeUnixNano"]),
                attributes=_attributes(event.get("attributes", ())),
            )
            for event in encoded.get("events", ())
        ),
        error=(status.get("message") or "failed") if failed else "",
        service=service,
        instance=instance,
    )


def _attributes(encoded: Iterable[Mapping[str, Any]]) -> dict[str, AttributeValue]:
    attributes = {}
    for item in encoded:
        value = _value(item["value"])
        if value is not None:
            attributes[item["key"]] = value
    return attributes


def _value(encoded: Mapping[str, Any]) -> AttributeValue | None:
    """The value; ``None`` for kinds that no service of ours writes."""
    if "arrayValue" in encoded:
        values = (_scalar(item) for item in encoded["arrayValue"].get("values", ()))
        return tuple(value for value in values if value is not None)
    return _scalar(encoded)


def _scalar(encoded: Mapping[str, Any]) -> Scalar | None:
    if "intValue" in encoded:
        return int(encoded["intValue"])
    if "doubleValue" in encoded:
        return float(encoded["doubleValue"])
    if "boolValue" in encoded:
        return bool(encoded["boolValue"])
    if "stringValue" in encoded:
        return str(encoded["stringValue"])
    return None


def integer(attributes: Attributes, key: str, default: int = 0) -> int:
    """An attribute that is a whole number; ``default`` where it is missing or something else."""
    value = attributes.get(key)
    return value if isinstance(value, int) else default


def integers(attributes: Attributes, key: str) -> tuple[int, ...]:
    """An attribute that is a list of whole numbers; empty where it is missing."""
    value = attributes.get(key)
    return tuple(int(item) for item in value) if isinstance(value, tuple) else ()
