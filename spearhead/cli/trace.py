"""``spearhead trace report``: why tokens were late, from trace files."""

import argparse
import json
from pathlib import Path

from spearhead.errors import ConfigError
from spearhead.trace.causes import Objectives
from spearhead.trace.html import report_html
from spearhead.trace.perfetto import perfetto_trace
from spearhead.trace.report import build_report
from spearhead.trace.spans import read_traces
from spearhead.trace.text import report_data, report_text


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command."""
    parser = commands.add_parser("trace", help="explain late tokens from trace files")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    report = actions.add_parser(
        "report",
        help="name the cause of every late token",
        description="Reads the files that telemetry.trace_file names, or those of an OpenTelemetry "
        "collector's file exporter, and says what each late token waited for. Give those of all services.",
    )
    report.set_defaults(run=run)
    report.add_argument("files", nargs="+", type=Path, metavar="FILE", help="OTLP JSON lines, or a folder")
    report.add_argument("--request", metavar="ID", help="report on this request only")
    report.add_argument(
        "--slo-ms", type=_milliseconds, metavar="N", help="a longer gap between outputs is late (default: "
        "half as long again as the request's median gap)",
    )  # fmt: skip
    report.add_argument("--ttft-slo-ms", type=_milliseconds, metavar="N", help="likewise, the first token")
    report.add_argument("--top", type=int, default=20, metavar="N", help="late tokens to list (20)")
    report.add_argument("--html", type=Path, metavar="OUT", help="write a page with the waterfalls")
    report.add_argument("--json", type=Path, metavar="OUT", help="write everything as JSON")
    report.add_argument("--perfetto", type=Path, metavar="OUT", help="write a file for ui.perfetto.dev")


def run(arguments: argparse.Namespace) -> int:
    """Prints the report and writes the files that were asked for."""
    if arguments.top < 1:
        raise ConfigError(f"--top is {arguments.top}; it must be at least 1")
    traces = read_traces(arguments.files)
    objectives = Objectives(itl_ns=arguments.slo_ms, ttft_ns=arguments.ttft_slo_ms)
    report = build_report(traces, request_id=arguments.request, objectives=objectives)
    print(report_text(report, top=arguments.top))
    if arguments.json is not None:
        _write(arguments.json, json.dumps(report_data(report), indent=1))
    if arguments.html is not None:
        _write(arguments.html, report_html(report, top=arguments.top))
    if arguments.perfetto is not None:
        _write(arguments.perfetto, json.dumps(perfetto_trace(traces.spans, report)))
    return 0


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}") from error
    print(f"written: {path}")


def _milliseconds(text: str) -> int:
    """Nanoseconds."""
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text} is not more than 0 milliseconds")
    return int(value * 1e6)
