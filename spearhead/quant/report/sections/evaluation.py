"""Variants side by side, one table a text."""

from spearhead.quant.report import formats
from spearhead.quant.report.document import RecoveryReport
from spearhead.quant.report.markup import Markup
from spearhead.quant.report.quality import EvaluationTable, VariantRow
from spearhead.quant.report.table import Column, Kind, section, table

_COLUMNS = [
    Column("variant"), Column("convention", Kind.NAME), Column("perplexity"),
    Column("over full precision"), Column("gap closed"), Column("KL mean"),
    Column("KL median"), Column("KL p99"), Column("KL closed"), Column("top-1"),
    Column("bytes"),
]  # fmt: skip


def evaluation_section(report: RecoveryReport) -> Markup:
    """The tables."""
    return section("evaluation", "Evaluation", *map(_table, report.evaluations))


def _table(one: EvaluationTable) -> Markup:
    caption = f"{one.text}; KL(full precision ‖ variant) in nats a token; gaps from the same W4 weights alone"
    return table(caption, _COLUMNS, [_row(row) for row in one.rows]) if one.rows else Markup("")


def _row(row: VariantRow) -> list[str]:
    return [
        row.variant, row.convention, formats.perplexity(row.perplexity), formats.ratio(row.perplexity_ratio),
        formats.percent(row.gap_closed_percent), formats.kl(row.kl_mean), formats.kl(row.kl_median),
        formats.kl(row.kl_p99), formats.percent(row.kl_closed_percent),
        formats.percent(100 * row.top1_agreement), formats.whole(row.served_bytes),
    ]  # fmt: skip
