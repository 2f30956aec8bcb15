"""What was run, on what, and how to run it again."""

from spearhead.quant.report import formats
from spearhead.quant.report.document import RecoveryReport
from spearhead.quant.report.identity import Identity
from spearhead.quant.report.markup import Markup, element, join, text
from spearhead.quant.report.table import Column, Kind, section, table


def setup_section(report: RecoveryReport) -> Markup:
    """Identity, texts, times, commands."""
    identity = report.identity
    return section(
        "setup",
        "Setup",
        _facts(identity),
        _texts(report),
        _stages(identity),
        _commands(identity),
    )


def _facts(identity: Identity) -> Markup:
    facts = {
        "model": identity.model,
        "revision": identity.revision,
        "quantiser": identity.quantizer.description,
        "convention": identity.quantizer.convention,
        "4-bit digest": identity.w4_digest,
        "4-bit bytes": formats.whole(identity.w4_bytes),
        "full-precision bytes": formats.whole(identity.full_precision_bytes),
        "seed": str(identity.seed),
        "device": identity.device,
        "versions": ", ".join(f"{one.package} {one.version}" for one in identity.versions) or formats.NONE,
    }
    entries = (
        join([element("dt", None, text(name)), element("dd", None, text(value))])
        for name, value in facts.items()
    )
    return element("dl", {"class": "facts"}, *entries)


def _texts(report: RecoveryReport) -> Markup:
    if not report.texts:
        return Markup("")
    columns = [
        Column("text"), Column("tokens scored"), Column("full-precision perplexity"),
        Column("W4 perplexity"), Column("W4 KL"), Column("protocol", Kind.PROSE),
        Column("SHA-256", Kind.PROSE),
    ]  # fmt: skip
    rows = [
        (
            one.name, formats.whole(one.token_count), formats.perplexity(one.full_precision_perplexity),
            formats.perplexity(one.w4_perplexity), formats.kl(one.w4_kl), one.protocol, one.digest,
        )
        for one in report.texts
    ]  # fmt: skip
    return table(f"Texts; W4: {report.identity.quantizer.convention}", columns, rows)


def _stages(identity: Identity) -> Markup:
    if not identity.stages:
        return Markup("")
    rows = [(one.stage, formats.duration(one.duration_s)) for one in identity.stages]
    rows.append(("all", formats.duration(sum(one.duration_s for one in identity.stages))))
    return table("Wall-clock time", [Column("stage"), Column("time")], rows)


def _commands(identity: Identity) -> Markup:
    if not identity.commands:
        return Markup("")
    lines = text("\n".join(identity.commands))
    return join([element("h3", None, text("Commands")), element("pre", None, element("code", None, lines))])
