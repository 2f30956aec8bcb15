"""Rung by rung: each had to beat the last one kept."""

from spearhead.quant.report import formats
from spearhead.quant.report.document import RecoveryReport
from spearhead.quant.report.markup import Markup
from spearhead.quant.report.plots import ladder_plot
from spearhead.quant.report.table import Column, Kind, figure, section, table


def rungs_section(report: RecoveryReport) -> Markup:
    """The ladder and its numbers."""
    if not report.rungs:
        return section("rungs", "Rungs")
    return section("rungs", "Rungs", _plot(report), _decisions(report), _scores(report))


def _plot(report: RecoveryReport) -> Markup:
    return figure(
        ladder_plot(report.rungs),
        "A rung is kept only if it beats the last one kept on held-out sequences. Filled: kept. "
        "Hollow: dropped. Whisker: interval of the paired bootstrap.",
    )


def _decisions(report: RecoveryReport) -> Markup:
    columns = [
        Column("rung"), Column("bytes"), Column("held-out KL"), Column("against the last one kept"),
        Column("verdict", Kind.NAME), Column("why", Kind.PROSE),
    ]  # fmt: skip
    rows = [
        (
            rung.rung, formats.whole(rung.compensator_bytes), formats.kl(rung.held_out_kl),
            formats.difference(rung.difference), formats.verdict(rung), rung.reason,
        )
        for rung in report.rungs
    ]  # fmt: skip
    return table("Decisions; KL in nats a token", columns, rows)


def _scores(report: RecoveryReport) -> Markup:
    convention = report.identity.quantizer.convention
    columns = [
        Column("rung"), Column("text", Kind.NAME), Column("perplexity"), Column("over full precision"),
        Column("gap closed"), Column("KL"), Column("KL closed"),
    ]  # fmt: skip
    rows = [
        (
            rung.rung, reference.name, formats.perplexity(score.perplexity),
            formats.ratio(score.perplexity / reference.full_precision_perplexity),
            formats.percent(reference.gap_closed_percent(score.perplexity)),
            formats.kl(score.kl), formats.percent(reference.kl_closed_percent(score.kl)),
        )
        for reference in report.texts
        for rung in report.rungs
        for score in rung.texts
        if score.text == reference.name
    ]  # fmt: skip
    return table(f"Scores; KL in nats a token; {convention}", columns, rows) if rows else Markup("")
