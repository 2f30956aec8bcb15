import math
from collections.abc import Callable
from xml.etree import ElementTree

import pytest

from spearhead.quant.report import QualityPoint, QualitySeries, RecoveryReport, SeriesKind, TextScore
from spearhead.quant.report.plots import Measure, quality_plot, series_styles

MakeReport = Callable[..., RecoveryReport]


def point(size: int, perplexity: float, kl: float, seed: int | None = None) -> QualityPoint:
    return QualityPoint(
        budget_percent=1.0,
        compensator_bytes=size,
        mean_rank=2.0,
        seed=seed,
        texts=(TextScore(text="WikiText-2", perplexity=perplexity, kl=kl),),
    )


def draw(report: RecoveryReport, points: tuple[QualityPoint, ...], measure: Measure) -> ElementTree.Element:
    series = (QualitySeries(name="one", kind=SeriesKind.OURS, points=points),)
    drawing = quality_plot("plot", report.texts[0], series, series_styles(series), measure)
    return ElementTree.fromstring(drawing)


def marks(drawing: ElementTree.Element) -> list[tuple[float, float]]:
    return [
        (float(mark.get("cx", "nan")), float(mark.get("cy", "nan")))
        for mark in drawing.iter("circle")
        if mark.get("class") == "mark"
    ]


def test_the_line_of_several_seeds_goes_through_their_geometric_mean(make_report: MakeReport) -> None:
    points = tuple(point(1000, perplexity, 0.5, seed) for seed, perplexity in enumerate((32.0, 40.0, 50.0)))
    drawing = draw(make_report(), (*points, point(1000, 40.0, 0.5, 3)), Measure.PERPLEXITY)
    heights = [y for _, y in marks(drawing)]
    line = next(path.get("d", "") for path in drawing.iter("path") if path.get("class") == "line")
    # Heights are logarithms, so their plain mean is the geometric mean's height.
    assert float(line.split()[1]) == pytest.approx(sum(heights) / 4, abs=0.1)


def test_what_is_zero_has_no_place_on_a_logarithmic_axis(make_report: MakeReport) -> None:
    points = (point(0, 40.0, 0.5), point(10, 40.0, 0.0), point(20, 40.0, -0.1), point(30, 40.0, 0.2))
    assert len(marks(draw(make_report(), points, Measure.KL))) == 1
    assert len(marks(draw(make_report(), points, Measure.PERPLEXITY))) == 3


def test_lower_perplexity_lies_lower_between_the_two_ends(make_report: MakeReport) -> None:
    report = make_report()
    drawing = draw(report, (point(1000, 60.0, 0.5), point(2000, 35.0, 0.2)), Measure.PERPLEXITY)
    ends = [
        float(path.get("d", "").partition(" ")[2].partition("H")[0])
        for group in drawing.iter("g")
        if group.get("class") == "reference"
        for path in group.iter("path")
    ]
    (first_x, first_y), (second_x, second_y) = marks(drawing)
    assert first_x < second_x
    assert ends[0] < first_y < second_y < ends[1]
    assert all(math.isfinite(end) for end in ends)
