"""The report as one page that needs no script, no network and no other file."""

from collections.abc import Sequence

from spearhead.trace.causes import LateToken
from spearhead.trace.drawing import life, waterfall
from spearhead.trace.markup import Markup, plain, tag
from spearhead.trace.report import Report, RequestReport
from spearhead.trace.style import STYLE, css_class
from spearhead.trace.text import milliseconds
from spearhead.trace.tiles import Cause

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_OPEN = 3
_REQUEST_COLUMNS = (
    "request",
    "in all",
    "first token",
    "tokens",
    "rounds",
    "typical gap",
    "late",
    "most time in",
)
_PART_COLUMNS = ("cause", "time", "against a typical gap")


def report_html(report: Report, *, top: int) -> str:
    """The page.

    Args:
        report: What to show.
        top: Most requests, and most late tokens, to draw; tables of more would not be read.
    """
    late = report.late
    body = tag(
        "body",
        tag("h1", plain("Why tokens were late")),
        tag("p", plain(_lead(report, late)), css="quiet"),
        *(tag("p", plain(warning), css="warn") for warning in report.warnings),
        _legend(),
        tag("h2", plain("Late tokens")),
        *_late_tokens(late, top),
        tag("h2", plain("Requests")),
        _request_table(report.requests),
        *_requests(report.requests, top),
    )
    head = (
        '<head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Why tokens were late</title><style>{STYLE}</style></head>"
    )
    return f'<!doctype html>\n<html lang="en">{head}{body}</html>\n'


def _lead(report: Report, late: Sequence[LateToken]) -> str:
    objective = report.objectives.itl_ns
    rule = (
        "longer than half as long again as is typical for its request"
        if objective is None
        else f"longer than {milliseconds(objective)}"
    )
    spans = ", ".join(f"{count} spans of {service}" for service, count in sorted(report.services.items()))
    found = f"{len(late)} late tokens in {len(report.requests)} requests"
    return f"{found}; a gap is late when {rule}. From {spans}."


def _legend() -> Markup:
    entries = (tag("span", tag("i"), plain(cause), css=css_class(cause)) for cause in Cause)
    return tag("div", *entries, css="legend")


def _late_tokens(late: Sequence[LateToken], top: int) -> list[Markup]:
    if not late:
        return [tag("p", plain("None."))]
    drawn = [_late_token(token, opened=index < _OPEN) for index, token in enumerate(late[:top])]
    if len(late) > top:
        drawn.append(tag("p", plain(f"… and {len(late) - top} more, less late."), css="quiet"))
    return drawn


def _late_token(token: LateToken, *, opened: bool) -> Markup:
    gap = token.gap
    summary = tag(
        "summary",
        plain(f"{token.request.request_id}, token {gap.token_index}: {milliseconds(token.excess_ns)} late, "),
        tag("b", plain(token.cause)),
        plain(f" — {token.note}" if token.note else ""),
        css=css_class(token.cause),
    )
    caption = (
        f"Step {gap.round.step_id} brought {gap.round.emitted} tokens ({gap.round.accepted} of "
        f"{gap.round.drafted} drafts accepted) after {milliseconds(gap.duration_ns)}; typical are "
        f"{milliseconds(token.typical_ns)}."
    )
    figure = tag("figure", waterfall(token), tag("figcaption", plain(caption)))
    attributes = {"open": ""} if opened else {}
    return tag("details", summary, figure, _part_table(token), **attributes)


def _part_table(token: LateToken) -> Markup:
    parts = token.gap.parts
    causes = sorted(token.excess_parts, key=lambda cause: -token.excess_parts[cause])
    rows = [
        tag(
            "tr",
            tag("td", tag("i"), plain(cause), css=css_class(cause)),
            tag("td", plain(milliseconds(parts.get(cause, 0)))),
            tag("td", plain(f"{token.excess_parts[cause] / 1e6:+.1f} ms")),
        )
        for cause in causes
    ]
    return _table(_PART_COLUMNS, rows)


def _request_table(requests: Sequence[RequestReport]) -> Markup:
    return _table(_REQUEST_COLUMNS, [_request_row(report) for report in requests])


def _request_row(report: RequestReport) -> Markup:
    request, gaps = report.request, report.gaps
    largest = next(iter(report.parts), None)
    cells = (
        milliseconds(request.end_ns - request.start_ns),
        milliseconds(gaps[0].duration_ns) if gaps else "–",
        report.tokens,
        len(gaps),
        "–" if report.typical is None else milliseconds(report.typical.gap_ns),
        len(report.late),
        "–" if largest is None else largest,
    )
    name = request.request_id + ("" if request.complete else " (unfinished)")
    return tag("tr", tag("td", plain(name), css="l"), *(tag("td", plain(cell)) for cell in cells))


def _requests(requests: Sequence[RequestReport], top: int) -> list[Markup]:
    worst = sorted(requests, key=lambda report: -sum(token.excess_ns for token in report.late))
    drawn: list[Markup] = []
    for report in worst[:top]:
        drawn += [tag("h3", plain(report.request.request_id)), tag("figure", life(report))]
    return drawn


def _table(columns: Sequence[str], rows: Sequence[Markup]) -> Markup:
    head = tag("thead", tag("tr", *(tag("th", plain(column)) for column in columns)))
    return tag("div", tag("table", head, tag("tbody", *rows)), css="scroll")
