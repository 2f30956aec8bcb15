"""The first screen: what it cost and what came back, on each text."""

from spearhead.quant.report import formats
from spearhead.quant.report.document import RecoveryReport
from spearhead.quant.report.ladder import RungResult, TextScore
from spearhead.quant.report.markup import Markup, element, join, text
from spearhead.quant.report.quality import TextReference
from spearhead.quant.report.table import paragraph, section


def summary_section(report: RecoveryReport) -> Markup:
    """Warnings, then one card a text with the best rung that was kept."""
    kept = [rung for rung in report.rungs if rung.kept]
    best = kept[-1] if kept else None
    cards = join(_card(report, reference, best) for reference in report.texts)
    warnings = join(element("li", None, text(warning)) for warning in report.warnings)
    return section(
        "result",
        "Result",
        element("ul", {"class": "warnings"}, warnings) if warnings else Markup(""),
        paragraph(_outcome(report, best), "lead"),
        element("div", {"class": "cards"}, cards) if cards else Markup(""),
    )


def _outcome(report: RecoveryReport, best: RungResult | None) -> str:
    identity = report.identity
    quantizer = identity.quantizer.full_description
    if best is None or not best.compensator_bytes:
        return f"4-bit weights ({quantizer}) without compensators."
    size = best.compensator_bytes
    return (
        f"4-bit weights ({quantizer}) with compensators, rung “{best.rung}”: {formats.whole(size)} bytes, "
        f"{formats.percent(100 * size / identity.w4_bytes)} of the 4-bit artefact "
        f"({formats.percent(100 * size / identity.full_precision_bytes)} of full precision)."
    )


def _card(report: RecoveryReport, reference: TextReference, best: RungResult | None) -> Markup:
    scores = [score for score in best.texts if score.text == reference.name] if best else []
    entries = [
        _entry("full precision", formats.perplexity(reference.full_precision_perplexity), "KL 0"),
        _entry("plain W4", formats.perplexity(reference.w4_perplexity), f"KL {formats.kl(reference.w4_kl)}"),
        *(_final_entry(reference, score) for score in scores if best and best.compensator_bytes),
    ]
    return element(
        "div",
        {"class": "card"},
        element("h3", None, text(reference.name)),
        element("dl", None, *entries),
        paragraph(f"Perplexity and KL (nats a token), {report.identity.quantizer.convention}.", "quiet"),
    )


def _final_entry(reference: TextReference, final: TextScore) -> Markup:
    ratio = final.perplexity / reference.full_precision_perplexity
    detail = (
        f"KL {formats.kl(final.kl)}; {formats.ratio(ratio)} full precision; closes "
        f"{formats.percent(reference.gap_closed_percent(final.perplexity))} of the perplexity gap, "
        f"{formats.percent(reference.kl_closed_percent(final.kl))} of the KL"
    )
    return _entry("recovered", formats.perplexity(final.perplexity), detail, "final")


def _entry(name: str, value: str, detail: str, style: str = "") -> Markup:
    description = [element("b", None, text(value)), Markup(" "), element("span", None, text(detail))]
    return element(
        "div",
        {"class": style} if style else None,
        element("dt", None, text(name)),
        element("dd", None, *description),
    )
