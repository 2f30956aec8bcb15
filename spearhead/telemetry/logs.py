"""Logging: one handler on stderr, as text or as one JSON object a line, with the ids of the current span."""

import json
import logging
import sys
import time
from typing import Any, Literal, TextIO

from opentelemetry import trace

# Libraries that say every few milliseconds what the service already reports once, in its own words.
_QUIET_LOGGERS = {"grpc": logging.WARNING, "opentelemetry": logging.CRITICAL, "asyncio": logging.WARNING}


def configure_logging(service_name: str, level: str, log_format: Literal["text", "json"]) -> None:
    """Sends all logging of the process to stderr; a later call replaces an earlier one.

    Args:
        service_name: Named on every line.
        level: ``debug``, ``info``, ``warning``, ``error`` or ``critical``.
        log_format: ``text`` or ``json``.
    """
    root = logging.getLogger()
    for handler in list(root.handlers):
        if isinstance(handler, _StderrHandler):
            root.removeHandler(handler)
    handler = _StderrHandler()
    handler.setFormatter(JsonFormatter(service_name) if log_format == "json" else TextFormatter(service_name))
    root.addHandler(handler)
    root.setLevel(level.upper())
    for name, quiet_level in _QUIET_LOGGERS.items():
        logging.getLogger(name).setLevel(quiet_level)


class _StderrHandler(logging.StreamHandler[TextIO]):
    """Looks stderr up at each line, since whoever redirects it later means us too."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]  # the base class keeps it as an attribute
        return sys.stderr


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, service, message, trace ids, exception."""

    def __init__(self, service_name: str) -> None:
        super().__init__()
        self._service_name = service_name

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        entry: dict[str, Any] = {
            "time": _utc(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "service": self._service_name,
            "message": record.getMessage(),
            **_trace_ids(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


class TextFormatter(logging.Formatter):
    """For people: time, level, service, logger, message, trace id."""

    def __init__(self, service_name: str) -> None:
        super().__init__()
        self._service_name = service_name

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end; an exception follows on lines of its own."""
        head = f"{_utc(record.created)} {record.levelname:<7} {self._service_name} {record.name}"
        line = f"{head}: {record.getMessage()}"
        if ids := _trace_ids():
            line += f" [trace {ids['trace_id']}]"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def _utc(created: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(created)) + f".{int(created % 1 * 1000):03d}Z"


def _trace_ids() -> dict[str, str]:
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return {}
    return {
        "trace_id": trace.format_trace_id(context.trace_id),
        "span_id": trace.format_span_id(context.span_id),
    }
