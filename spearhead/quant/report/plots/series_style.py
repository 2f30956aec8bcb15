"""Which colour, shape and line a series has, in every plot and legend."""

from collections.abc import Sequence
from dataclasses import dataclass

from spearhead.quant.report.quality import QualitySeries, SeriesKind
from spearhead.quant.report.svg import SHAPES

_OURS = ("s0", "s1", "s2")
_BASELINES = ("s3", "s4", "s5", "s6", "s8")
_CONTROLS = ("s7",)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesStyle:
    """How a series is drawn.

    Attributes:
        classes: Of the style sheet.
        shape: Of its markers.
    """

    classes: str
    shape: str


def series_styles(series: Sequence[QualitySeries]) -> dict[str, SeriesStyle]:
    """One style a series name: colours go by kind, shapes go on, so no two of the first 20 are alike."""
    colours = {SeriesKind.OURS: _OURS, SeriesKind.BASELINE: _BASELINES, SeriesKind.CONTROL: _CONTROLS}
    counts = dict.fromkeys(SeriesKind, 0)
    styles = {}
    for position, one in enumerate(series):
        palette = colours[one.kind]
        colour = palette[counts[one.kind] % len(palette)]
        counts[one.kind] += 1
        styles[one.name] = SeriesStyle(classes=f"{colour} {one.kind}", shape=SHAPES[position % len(SHAPES)])
    return styles
