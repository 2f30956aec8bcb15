"""The drawings of the page: a request's life, its gaps, and the waterfall of one late token."""

from collections.abc import Sequence

from spearhead.trace.causes import Gap, LateToken
from spearhead.trace.markup import Markup, plain, tag
from spearhead.trace.report import RequestReport
from spearhead.trace.style import css_class
from spearhead.trace.text import milliseconds
from spearhead.trace.tiles import Cause, Tile

_WIDTH, _LEFT, _LANE = 1100, 190, 22
_COLUMNS = 600
"""A request of any length becomes so many columns: a page must not grow with the output."""


def life(report: RequestReport) -> Markup:
    """A request from its arrival to its end: segments, time by cause, and the gaps before its outputs."""
    request = report.request
    start_ns, span_ns = request.start_ns, max(request.end_ns - request.start_ns, 1)
    axis = _Axis(start_ns, span_ns)
    rows = [tag("text", plain("request"), x=0, y=15), tag("text", plain("time by cause"), x=0, y=15 + _LANE)]
    for name, interval in request.segments:
        rows.append(axis.bar(interval.start_ns, interval.end_ns, 3, 16, f"s-{name}", name))
    tiles = [tile for gap in report.gaps for tile in gap.tiles]
    rows += [axis.bar(a, b, 3 + _LANE, 16, css_class(cause), cause) for a, b, cause in _columns(tiles, axis)]
    rows += _gap_bars(report, axis, top=2 * _LANE + 14, height=110)
    height = 2 * _LANE + 150
    rows += axis.ticks(height - 18)
    title = f"Request {request.request_id} over time"
    return _svg(height, title, rows)


def waterfall(token: LateToken) -> Markup:
    """One late gap: a lane a cause, in the order in which they first appear."""
    gap = token.gap
    axis = _Axis(gap.start_ns, max(gap.duration_ns, 1))
    lanes = list(dict.fromkeys(tile.cause for tile in gap.tiles))
    parts = gap.parts
    rows = []
    for index, cause in enumerate(lanes):
        y = index * _LANE
        rows.append(tag("text", plain(f"{cause} {milliseconds(parts[cause])}"), x=0, y=y + 15))
        for tile in _longest([tile for tile in gap.tiles if tile.cause is cause]):
            words = f"{cause} {milliseconds(tile.duration_ns)}: {tile.note}"
            rows.append(axis.bar(tile.start_ns, tile.end_ns, y + 3, 16, css_class(cause), words))
    height = len(lanes) * _LANE + 22
    rows += axis.ticks(height - 18)
    return _svg(height, f"What token {gap.token_index} waited for", rows)


class _Axis:
    def __init__(self, start_ns: int, span_ns: int) -> None:
        self.start_ns = start_ns
        self.span_ns = span_ns

    def x(self, time_ns: float) -> float:
        return _LEFT + (time_ns - self.start_ns) / self.span_ns * (_WIDTH - _LEFT)

    def bar(self, start_ns: float, end_ns: float, y: float, height: float, css: str, words: str) -> Markup:
        left, right = self.x(start_ns), self.x(end_ns)
        title = tag("title", plain(words))
        return tag("rect", title, x=left, y=y, width=max(right - left, 0.5), height=height, css=css)

    def ticks(self, y: float) -> list[Markup]:
        rows = [tag("path", d=f"M{_LEFT} {y}H{_WIDTH}", css="rule")]
        for index in range(6):
            time_ns = self.span_ns * index / 5
            words = plain("0" if not index else milliseconds(time_ns))
            css = "q e" if index == 5 else "q"
            rows.append(tag("text", words, x=self.x(self.start_ns + time_ns), y=y + 14, css=css))
        return rows


def _gap_bars(report: RequestReport, axis: _Axis, *, top: float, height: float) -> list[Markup]:
    """The gaps as columns where their outputs came; late ones have the colour of their cause."""
    if not report.gaps:
        return []
    late = {token.gap.index: token for token in report.late}
    longest = max(gap.duration_ns for gap in report.gaps)
    rows = [
        tag("text", plain("gap before output"), x=0, y=top + 10),
        tag("text", plain(f"longest {milliseconds(longest)}"), x=0, y=top + 26, css="q"),
    ]
    for gap in _tallest(report.gaps, axis):
        token = late.get(gap.index)
        tall = max(gap.duration_ns / longest * height, 1.0)
        words = f"token {gap.token_index}: {milliseconds(gap.duration_ns)}" + (
            f", {token.cause}" if token else ""
        )
        css = css_class(token.cause) if token else "usual"
        x = axis.x(gap.end_ns)
        title = tag("title", plain(words))
        rows.append(tag("rect", title, x=x - 1.5, y=top + height - tall, width=1.6, height=tall, css=css))
    return rows


def _tallest(gaps: Sequence[Gap], axis: _Axis) -> list[Gap]:
    """The longest gap of each column."""
    columns: dict[int, Gap] = {}
    for gap in gaps:
        column = int((gap.end_ns - axis.start_ns) / axis.span_ns * _COLUMNS)
        if column not in columns or gap.duration_ns > columns[column].duration_ns:
            columns[column] = gap
    return list(columns.values())


def _columns(tiles: Sequence[Tile], axis: _Axis) -> list[tuple[float, float, Cause]]:
    """Each column's largest cause, with equal neighbours joined."""
    width_ns = axis.span_ns / _COLUMNS
    shares: list[dict[Cause, float]] = [{} for _ in range(_COLUMNS)]
    for tile in tiles:
        first = int((tile.start_ns - axis.start_ns) / width_ns)
        last = int((tile.end_ns - axis.start_ns) / width_ns)
        for column in range(max(first, 0), min(last, _COLUMNS - 1) + 1):
            begin_ns = axis.start_ns + column * width_ns
            inside = min(tile.end_ns, begin_ns + width_ns) - max(tile.start_ns, begin_ns)
            shares[column][tile.cause] = shares[column].get(tile.cause, 0.0) + inside
    bars: list[tuple[float, float, Cause]] = []
    for column, share in enumerate(shares):
        if not share:
            continue
        cause = max(share, key=lambda cause: share[cause])
        begin_ns = axis.start_ns + column * width_ns
        if bars and bars[-1][2] is cause and bars[-1][1] >= begin_ns - 1:
            bars[-1] = (bars[-1][0], begin_ns + width_ns, cause)
        else:
            bars.append((begin_ns, begin_ns + width_ns, cause))
    return bars


def _longest(tiles: Sequence[Tile]) -> Sequence[Tile]:
    """Only so many tiles as can be seen: the longest ones."""
    if len(tiles) <= _COLUMNS:
        return tiles
    return sorted(tiles, key=lambda tile: -tile.duration_ns)[:_COLUMNS]


def _svg(height: float, title: str, rows: Sequence[Markup]) -> Markup:
    return tag("svg", tag("title", plain(title)), *rows, viewBox=f"0 0 {_WIDTH} {height:g}", role="img")
