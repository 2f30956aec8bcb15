import json
import logging

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from spearhead.telemetry.logs import configure_logging

logger = logging.getLogger("spearhead.example")


def json_lines(text):
    return [json.loads(line) for line in text.splitlines()]


def test_json_is_one_object_a_line(capsys):
    configure_logging("verify_service", "info", "json")
    logger.info("two\nlines of %s", "Grüße")
    (entry,) = json_lines(capsys.readouterr().err)
    assert entry.pop("time").endswith("Z")
    assert entry == {
        "level": "info",
        "logger": "spearhead.example",
        "service": "verify_service",
        "message": "two\nlines of Grüße",
    }


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_a_line_within_a_span_names_its_trace(capsys, log_format):
    configure_logging("verify_service", "info", log_format)
    with TracerProvider().get_tracer("test").start_as_current_span("work") as span:
        logger.info("inside")
    logger.info("outside")
    inside, outside = capsys.readouterr().err.splitlines()
    context = span.get_span_context()
    assert trace.format_trace_id(context.trace_id) in inside
    assert "trace" not in outside
    if log_format == "json":
        assert json.loads(inside)["span_id"] == trace.format_span_id(context.span_id)


def test_an_exception_stays_on_its_json_line(capsys):
    configure_logging("verify_service", "info", "json")
    try:
        raise ValueError("odd")
    except ValueError:
        logger.exception("failed")
    (entry,) = json_lines(capsys.readouterr().err)
    assert entry["exception"].startswith("Traceback")
    assert entry["exception"].endswith("ValueError: odd")


def test_text_names_level_service_and_logger(capsys):
    configure_logging("verify_service", "info", "text")
    logger.warning("too %s", "hot")
    assert capsys.readouterr().err.endswith("WARNING verify_service spearhead.example: too hot\n")


def test_the_level_is_obeyed(capsys):
    configure_logging("verify_service", "warning", "text")
    logger.info("not this")
    logger.warning("but this")
    assert [line.rsplit(": ", 1)[1] for line in capsys.readouterr().err.splitlines()] == ["but this"]


def test_a_second_call_replaces_the_first(capsys):
    configure_logging("first", "info", "text")
    configure_logging("second", "info", "json")
    logger.info("once")
    (entry,) = json_lines(capsys.readouterr().err)
    assert entry["service"] == "second"


def test_libraries_stay_quiet_even_at_debug(capsys):
    configure_logging("verify_service", "debug", "text")
    logging.getLogger("grpc._cython.cygrpc").debug("using selector")
    logging.getLogger("asyncio").debug("using selector")
    logging.getLogger("opentelemetry.exporter").error("Failed to export, every 300 ms")
    assert capsys.readouterr().err == ""


def test_what_grpc_warns_about_is_shown(capsys):
    configure_logging("verify_service", "info", "text")
    logging.getLogger("grpc._cython.cygrpc").error("unexpected")
    assert "unexpected" in capsys.readouterr().err
