"""The area of a plot, its grid, its ticks and the names of its axes."""

from collections.abc import Callable
from dataclasses import dataclass

from spearhead.quant.report.markup import Markup, element, join, void
from spearhead.quant.report.svg.canvas import label
from spearhead.quant.report.svg.scale import Scale

Format = Callable[[float], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """Where marks may go: a rectangle in a drawing."""

    left: float
    top: float
    right: float
    bottom: float


def axes(
    frame: Frame,
    x: Scale,
    y: Scale,
    *,
    x_title: str,
    y_title: str,
    x_format: Format,
    y_format: Format,
    x_ticks: int = 6,
    y_ticks: int = 5,
) -> Markup:
    """Grid, tick labels and axis names; draw it first, marks lie above it.

    Args:
        frame: The area; ``x`` and ``y`` map into it.
        x: Scale of the lower edge.
        y: Scale of the left edge.
        x_title: With its unit.
        y_title: With its unit; stands above the left edge, so that it can be read without turning.
        x_format: Of tick labels.
        y_format: Of tick labels.
        x_ticks: About how many.
        y_ticks: About how many.
    """
    columns = [(x(value), x_format(value)) for value in x.ticks(x_ticks)]
    rows = [(y(value), y_format(value)) for value in y.ticks(y_ticks)]
    grid = "".join(f"M{at:.1f} {frame.top:g}V{frame.bottom:g}" for at, _ in columns)
    grid += "".join(f"M{frame.left:g} {at:.1f}H{frame.right:g}" for at, _ in rows)
    edge = f"M{frame.left:g} {frame.top:g}V{frame.bottom:g}H{frame.right:g}"
    return element(
        "g",
        {"class": "axes"},
        void("path", {"class": "grid", "d": grid}),
        void("path", {"class": "edge", "d": edge}),
        join(label(at, frame.bottom + 16, content, "middle") for at, content in columns),
        join(label(frame.left - 7, at + 4, content, "end") for at, content in rows),
        label((frame.left + frame.right) / 2, frame.bottom + 36, x_title, "middle name"),
        label(frame.left - 7, frame.top - 12, y_title, "name"),
    )
