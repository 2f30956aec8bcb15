"""Where four bits hurt, and where compensators went."""

from spearhead.quant.report import formats
from spearhead.quant.report.document import RecoveryReport
from spearhead.quant.report.markup import Markup, join
from spearhead.quant.report.plots import heat_map, spectrum_plot
from spearhead.quant.report.selection import DamageKind, Spectrum
from spearhead.quant.report.table import Column, Kind, figure, folded, paragraph, section, table

_NAMES = {
    DamageKind.CKA_FINAL: "1 − CKA, final",
    DamageKind.CKA_BLOCK: "1 − CKA, block",
    DamageKind.KL: "KL",
}


def damage_section(report: RecoveryReport) -> Markup:
    """Heat map, spectrum, correlations, and all modules."""
    return section("damage", "Damage and ranks", _map(report), _spectrum(report.spectrum), _modules(report))


def _map(report: RecoveryReport) -> Markup:
    if not report.modules:
        return Markup("")
    measured = f" ({_NAMES[report.spectrum.kind]})" if report.spectrum else ""
    return figure(
        heat_map(report.modules),
        f"Share of all damage{measured} when only that module is quantised, and the rank that it got. "
        "A cell without a number has no compensator.",
    )


def _spectrum(spectrum: Spectrum | None) -> Markup:
    if spectrum is None:
        return Markup("")
    if not spectrum.shares or spectrum.shares[0] <= 0:
        return paragraph("No module was damaged: there is no spectrum to draw.")
    rows = [
        ("damage", _NAMES[spectrum.kind]),
        ("entropy H, nats", f"{spectrum.entropy_nats:.3f}"),
        ("H over ln M", f"{spectrum.entropy_normalized:.3f}"),
        ("effective number k_eff = exp(H)", f"{spectrum.effective_count:.1f}"),
        ("modules M", formats.whole(len(spectrum.shares))),
        ("modules chosen k", formats.whole(spectrum.chosen_count)),
    ]
    rows += [
        (f"Spearman, {_NAMES[one.first]} and {_NAMES[one.second]}", f"{one.spearman:.3f}")
        for one in spectrum.correlations
    ]
    return join(
        [
            figure(spectrum_plot(spectrum), "How damage spreads: the flatter, the more modules need help."),
            table("Damage spectrum", [Column("quantity"), Column("value")], rows),
        ]
    )


def _modules(report: RecoveryReport) -> Markup:
    if not report.modules:
        return Markup("")
    kinds = [kind for kind in DamageKind if any(one.damage_by(kind) is not None for one in report.modules)]
    columns = [
        Column("module"), Column("N × K"), *(Column(_NAMES[kind]) for kind in kinds),
        Column("share"), Column("rank"), Column("bytes"), Column("energy captured"),
        Column("why", Kind.PROSE),
    ]  # fmt: skip
    rows = [
        (
            one.name, f"{one.output_width} × {one.input_width}",
            *(formats.damage(one.damage_by(kind)) for kind in kinds),
            formats.percent(100 * one.share), str(one.rank), formats.whole(one.compensator_bytes),
            formats.percent(None if one.energy is None else 100 * one.energy), one.reason,
        )
        for one in report.modules
    ]  # fmt: skip
    return folded(formats.all_of(len(rows), "module"), table("Modules", columns, rows), len(rows))
