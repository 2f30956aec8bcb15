"""Which colour, shape and line a series has, in every plot and legend."""

from collections.abc import Sequence
from dataclasses import dataclass

from spearhead.quant.report.quality import QualitySeries, SeriesKind
from spearhead.quant.report.svg import SHAPES

# Colours of each kind. Their numbers and that of the shapes share no divisor, so pairs repeat late.
_COLOURS = {
    SeriesKind.OURS: ("s0", "s1", "s2"),
    SeriesKind.BASELINE: ("s3", "s4", "s5", "s6", "s8"),
    SeriesKind.CONTROL: ("s7",),
}
_FIRST_SHAPE = {SeriesKind.OURS: 0, SeriesKind.BASELINE: 3, SeriesKind.CONTROL: 1}


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
    """One style a series name; among 21 of ours, 35 baselines and 7 controls no two are alike."""
    counts = dict.fromkeys(SeriesKind, 0)
    styles = {}
    for one in series:
        count, colours = counts[one.kind], _COLOURS[one.kind]
        counts[one.kind] += 1
        styles[one.name] = SeriesStyle(
            classes=f"{colours[count % len(colours)]} {one.kind}",
            shape=SHAPES[(count + _FIRST_SHAPE[one.kind]) % len(SHAPES)],
        )
    return styles
