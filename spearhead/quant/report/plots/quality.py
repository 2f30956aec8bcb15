"""Perplexity or KL against bytes, both logarithmic, for every series."""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from spearhead.quant.report import formats
from spearhead.quant.report.markup import Markup, element, join, text, void
from spearhead.quant.report.plots.series_style import SeriesStyle
from spearhead.quant.report.quality import QualityPoint, QualitySeries, TextReference
from spearhead.quant.report.svg import Canvas, Frame, LogScale, axes, label, line_path, marker

_FRAME = Frame(left=62, top=34, right=486, bottom=306)


class Measure(StrEnum):
    """What the vertical axis shows."""

    PERPLEXITY = "perplexity"
    KL = "kl"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    size: float
    value: float
    point: QualityPoint


def quality_plot(
    identifier: str,
    reference: TextReference,
    series: Sequence[QualitySeries],
    styles: Mapping[str, SeriesStyle],
    measure: Measure,
) -> Markup:
    """One panel for one text.

    Args:
        identifier: Unique in the page.
        reference: The text; its two ends are drawn as horizontal lines.
        series: What to draw; points without this text, or that are 0, have no place on the axes.
        styles: One a series name.
        measure: Vertical axis.
    """
    placed = {one.name: _places(one, reference.name, measure) for one in series}
    every = [place for places in placed.values() for place in places]
    lines = _lines(reference, measure)
    x = LogScale.fit([place.size for place in every], _FRAME.left, _FRAME.right)
    y = LogScale.fit([*(place.value for place in every), *lines.values()], _FRAME.bottom, _FRAME.top)
    unit = "perplexity" if measure is Measure.PERPLEXITY else "KL, nats a token"
    return Canvas(
        identifier=identifier,
        width=510,
        height=352,
        title=f"{reference.name}: {unit} against bytes",
        description=f"Both axes logarithmic; {len(series)} series; lines for full precision and plain W4.",
    ).draw(
        axes(
            _FRAME, x, y,
            x_title="bytes of compensators", y_title=f"{_shortened(reference.name)}: {unit}",
            x_format=formats.size, y_format=formats.tick, x_ticks=5,
        ),
        join(_horizontal(name, value, y) for name, value in lines.items() if y.shows(value)),
        join(_series(name, places, styles[name], x, y) for name, places in placed.items()),
    )  # fmt: skip


def _lines(reference: TextReference, measure: Measure) -> dict[str, float]:
    if measure is Measure.KL:
        return {f"plain W4 {formats.kl(reference.w4_kl)}": reference.w4_kl}
    ends = {"plain W4": reference.w4_perplexity, "full precision": reference.full_precision_perplexity}
    return {f"{name} {formats.perplexity(value)}": value for name, value in ends.items()}


def _places(series: QualitySeries, text_name: str, measure: Measure) -> list[_Place]:
    found = [
        _Place(size=point.compensator_bytes, value=value, point=point)
        for point in series.points
        for score in point.texts
        if score.text == text_name
        for value in (score.perplexity if measure is Measure.PERPLEXITY else score.kl,)
        if point.compensator_bytes > 0 and value >= sys.float_info.min
    ]
    return sorted(found, key=lambda place: place.size)


def _series(name: str, places: Sequence[_Place], style: SeriesStyle, x: LogScale, y: LogScale) -> Markup:
    line = [(x(size), y(value)) for size, value in _middles(places)]
    return element(
        "g",
        {"class": style.classes},
        void("path", {"class": "line", "d": line_path(line)}),
        join(_mark(name, place, style.shape, x, y) for place in places),
    )


def _mark(name: str, place: _Place, shape: str, x: LogScale, y: LogScale) -> Markup:
    seed = "" if place.point.seed is None else f", seed {place.point.seed}"
    hint = (
        f"{name}{seed}: {place.value:.4g} at {formats.size(place.size)} "
        f"({formats.percent(place.point.budget_percent)} budget, mean rank {place.point.mean_rank:.3g})"
    )
    return marker(shape, x(place.size), y(place.value), 4, element("title", None, text(hint)), style="mark")


def _middles(places: Sequence[_Place]) -> list[tuple[float, float]]:
    """One point a budget: the geometric mean over seeds."""
    budgets: dict[float, list[_Place]] = {}
    for place in places:
        budgets.setdefault(place.point.budget_percent, []).append(place)
    return [
        (_geometric_mean([p.size for p in group]), _geometric_mean([p.value for p in group]))
        for group in budgets.values()
    ]


def _geometric_mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def _horizontal(name: str, value: float, y: LogScale) -> Markup:
    return element(
        "g",
        {"class": "reference"},
        void("path", {"d": f"M{_FRAME.left:g} {y(value):.1f}H{_FRAME.right:g}"}),
        label(_FRAME.right - 4, y(value) - 5, name, "end"),
    )


def _shortened(name: str) -> str:
    return name if len(name) <= 32 else f"{name[:31]}…"
