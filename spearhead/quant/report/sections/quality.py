"""Quality against bytes, for our rungs, published methods and controls."""

from collections.abc import Iterator

from spearhead.quant.report import formats
from spearhead.quant.report.document import RecoveryReport
from spearhead.quant.report.markup import Markup, element, join, text
from spearhead.quant.report.plots import Measure, quality_plot, series_styles
from spearhead.quant.report.quality import ByteRatio, QualityPoint
from spearhead.quant.report.svg import swatch
from spearhead.quant.report.table import Column, Kind, figure, folded, section, table


def quality_section(report: RecoveryReport) -> Markup:
    """Two panels a text, the points, and bytes at equal perplexity."""
    return section("quality", "Quality against bytes", _panels(report), _ratios(report), _points(report))


def _panels(report: RecoveryReport) -> Markup:
    if not report.series:
        return Markup("")
    styles = series_styles(report.series)
    legend = [
        element("span", None, swatch(style.classes, style.shape), text(name))
        for name, style in styles.items()
    ]
    panels = [
        figure(
            quality_plot(f"{measure}-{index}", reference, report.series, styles, measure),
            f"{reference.name}, {report.identity.quantizer.convention}. Further down and left is better.",
        )
        for index, reference in enumerate(report.texts)
        for measure in Measure
    ]
    return join([element("div", {"class": "legend"}, *legend), element("div", {"class": "panels"}, *panels)])


def _points(report: RecoveryReport) -> Markup:
    columns = [
        Column("series"), Column("seed"), Column("budget"), Column("bytes"),
        Column("mean rank"),
    ]  # fmt: skip
    for reference in report.texts:
        columns += [Column(f"{reference.name}: perplexity"), Column(f"{reference.name}: KL")]
    rows = [
        [series.name, *_point(report, point)]
        for series in report.series
        for point in sorted(series.points, key=lambda point: point.compensator_bytes)
    ]
    if not rows:
        return Markup("")
    caption = f"Points; budget in percent of the 4-bit artefact; {report.identity.quantizer.convention}"
    return folded(formats.all_of(len(rows), "point"), table(caption, columns, rows), len(rows))


def _point(report: RecoveryReport, point: QualityPoint) -> Iterator[str]:
    yield formats.NONE if point.seed is None else str(point.seed)
    yield formats.percent(point.budget_percent)
    yield formats.whole(point.compensator_bytes)
    yield f"{point.mean_rank:.2f}"
    scores = {score.text: score for score in point.texts}
    for reference in report.texts:
        score = scores.get(reference.name)
        yield formats.NONE if score is None else formats.perplexity(score.perplexity)
        yield formats.NONE if score is None else formats.kl(score.kl)


def _ratios(report: RecoveryReport) -> Markup:
    if not report.byte_ratios:
        return Markup("")
    columns = [
        Column("text"), Column("ours", Kind.NAME), Column("bytes"),
        Column("perplexity"), Column("KL"), Column("baseline", Kind.NAME),
        Column("bytes"), Column("perplexity"), Column("KL"),
        Column("our bytes over theirs"), Column("convention", Kind.NAME),
    ]  # fmt: skip
    caption = (
        "Bytes at equal perplexity: the baseline's cheapest point that is no worse than ours. "
        "“≤”: its best point is still worse, so it would need more."
    )
    return table(caption, columns, [_ratio(one) for one in report.byte_ratios])


def _ratio(one: ByteRatio) -> list[str]:
    sides = [
        cell
        for side in (one.ours, one.baseline)
        for cell in (
            side.series, formats.whole(side.compensator_bytes), formats.perplexity(side.perplexity),
            formats.kl(side.kl),
        )
    ]  # fmt: skip
    bound = "" if one.reached else "≤ "
    return [one.text, *sides, bound + formats.percent(one.percent), one.convention]
