"""The report as text, and as plain data for JSON; pure functions."""

from collections.abc import Iterable, Mapping
from typing import Any

from spearhead.trace.causes import LateToken
from spearhead.trace.report import Report, RequestReport
from spearhead.trace.tiles import Cause


def report_text(report: Report, *, top: int) -> str:
    """The report for a terminal.

    Args:
        report: What to print.
        top: Most late tokens, and most requests, to list.
    """
    late = report.late
    lines = [f"spans: {', '.join(f'{name} {count}' for name, count in sorted(report.services.items()))}"]
    lines += [f"note: {warning}" for warning in report.warnings]
    lines.append("")
    for request in sorted(report.requests, key=lambda r: -_excess_ns(r))[:top]:
        lines += _request_lines(request)
    if hidden := len(report.requests) - top:
        lines += [f"… and {hidden} more requests with less to explain"] if hidden > 0 else []
    lines += ["", f"late tokens: {len(late)}{_by_cause(late)}"]
    lines += [_late_line(token) for token in late[:top]]
    if len(late) > top:
        lines.append(f"… and {len(late) - top} more; --top {len(late)} lists all")
    return "\n".join(lines)


def _request_lines(report: RequestReport) -> list[str]:
    request, first = report.request, report.gaps[0].duration_ns if report.gaps else None
    typical = "" if report.typical is None else f", typical gap {milliseconds(report.typical.gap_ns)}"
    head = (
        f"request {request.request_id}: {milliseconds(request.end_ns - request.start_ns)} in all, "
        + (f"first token after {milliseconds(first)}, " if first is not None else "no token, ")
        + f"{report.tokens} tokens in {len(report.gaps)} rounds{typical}, {len(report.late)} late"
        + (f"; failed: {request.error}" if request.error else "")
    )
    return [head, f"  time by cause: {_parts(report.parts)}"]


def _late_line(token: LateToken) -> str:
    gap = token.gap
    note = f" — {token.note}" if token.note else ""
    return (
        f"  {token.request.request_id}  token {gap.token_index} (step {gap.round.step_id}): "
        f"{milliseconds(gap.duration_ns)}, {milliseconds(token.excess_ns)} late: "
        f"{token.cause.upper()}{note}\n"
        f"      {_parts(gap.parts)}"
    )


def _parts(parts: Mapping[Cause, int]) -> str:
    largest = sorted(parts.items(), key=lambda part: -part[1])
    return ", ".join(f"{cause} {milliseconds(ns)}" for cause, ns in largest if ns >= 5_000) or "nothing"


def _by_cause(late: Iterable[LateToken]) -> str:
    totals: dict[Cause, tuple[int, float]] = {}
    for token in late:
        count, excess_ns = totals.get(token.cause, (0, 0.0))
        totals[token.cause] = (count + 1, excess_ns + token.excess_ns)
    ordered = sorted(totals.items(), key=lambda item: -item[1][1])
    words = (f"{cause} {count} by {milliseconds(excess_ns)}" for cause, (count, excess_ns) in ordered)
    return f" ({', '.join(words)})" if totals else ""


def _excess_ns(report: RequestReport) -> float:
    return sum(token.excess_ns for token in report.late)


def milliseconds(ns: float) -> str:
    """A duration for people: ``12.3 ms``, ``1234 ms``."""
    return f"{ns / 1e6:.0f} ms" if ns >= 1e9 else f"{ns / 1e6:.1f} ms" if ns >= 1e6 else f"{ns / 1e6:.2f} ms"


def report_data(report: Report) -> dict[str, Any]:
    """The report as values that JSON knows; durations in nanoseconds, times in Unix nanoseconds."""
    return {
        "format": "spearhead-trace-report",
        "version": 1,
        "objectives": {"itl_ns": report.objectives.itl_ns, "ttft_ns": report.objectives.ttft_ns},
        "spans": dict(report.services),
        "warnings": list(report.warnings),
        "requests": [_request_data(request) for request in report.requests],
        "late": [_late_data(token) for token in report.late],
    }


def _request_data(report: RequestReport) -> dict[str, Any]:
    request, typical = report.request, report.typical
    return {
        "request_id": request.request_id,
        "trace_id": request.trace_id,
        "start_ns": request.start_ns,
        "end_ns": request.end_ns,
        "complete": request.complete,
        "error": request.error,
        "tokens": report.tokens,
        "rounds": len(report.gaps),
        "typical_gap_ns": None if typical is None else typical.gap_ns,
        "parts_ns": {str(cause): ns for cause, ns in report.parts.items()},
    }


def _late_data(token: LateToken) -> dict[str, Any]:
    gap = token.gap
    return {
        "request_id": token.request.request_id,
        "trace_id": token.request.trace_id,
        "token_index": gap.token_index,
        "step_id": gap.round.step_id,
        "start_ns": gap.start_ns,
        "end_ns": gap.end_ns,
        "gap_ns": gap.duration_ns,
        "typical_ns": token.typical_ns,
        "excess_ns": token.excess_ns,
        "cause": str(token.cause),
        "note": token.note,
        "parts_ns": {str(cause): ns for cause, ns in gap.parts.items()},
        "excess_parts_ns": {str(cause): ns for cause, ns in token.excess_parts.items()},
        "tokens": gap.round.emitted,
        "drafted": gap.round.drafted,
        "accepted": gap.round.accepted,
    }
