"""A calibration as text; pure functions."""

from collections.abc import Mapping

from spearhead.cli.tables import table
from spearhead.quant.calibration import Calibration
from spearhead.quant.calibration.scoring import REFERENCE, Score
from spearhead.quant.report import Rung


def describe_calibration(found: Calibration, scores: Mapping[str, Mapping[str, Score]]) -> str:
    """Where ranks went, every rung on every text, what was decided, and what was written."""
    return "\n".join(
        [
            _placement(found),
            *(f"\n{_text(found, text, by_variant)}" for text, by_variant in scores.items()),
            "",
            *(decision.sentence for decision in found.decisions),
            _verdict(found),
        ]
    )


def _placement(found: Calibration) -> str:
    allocation, spread = found.allocation, found.allocation.damage
    ranks = sorted(allocation.ranks.values())
    damage = "" if spread is None else f"; damage is spread as over {spread.effective_count:.1f} of them"
    others = ", ".join(
        f"{first} and {second} {'undefined' if value is None else f'{value:.2f}'}"
        for (first, second), value in found.damage.correlations().items()
    )
    return (
        f"{len(ranks)} of {len(found.subject.modules)} modules get ranks {ranks[0]} to {ranks[-1]} by "
        f"{found.damage.kind}{damage}; rank correlation of {others}\n"
        f"budget {allocation.budget_bytes} bytes, spent {allocation.spent_bytes}: "
        f"{100 * allocation.spent_bytes / found.subject.artefact.stored_bytes:.2f}% of the 4-bit weights, "
        f"{100 * allocation.spent_bytes / found.subject.full.stored_bytes:.2f}% of full precision"
    )


def _text(found: Calibration, text: str, scores: Mapping[str, Score]) -> str:
    w4_bytes = found.subject.artefact.stored_bytes
    sizes = {state.rung.value: w4_bytes + state.compensator_bytes for state in found.rungs}
    sizes[REFERENCE] = found.subject.full.stored_bytes
    whole, start = scores[REFERENCE], scores[Rung.W4.value]
    rows = [[text, "MB", "perplexity", "of full", "gap closed", "KL", "closed", "p99", "top-1", "quantiser"]]
    for name, score in scores.items():
        rows.append(
            [
                name,
                f"{sizes[name] / 1e6:.2f}",
                f"{score.perplexity:.3f}",
                f"{score.perplexity / whole.perplexity:.3f}",
                _closed(score.perplexity, start.perplexity, whole.perplexity),
                f"{score.kl_mean:.4f}",
                _closed(score.kl_mean, start.kl_mean, 0.0),
                f"{score.kl_p99:.3f}",
                f"{score.agreement:.1%}",
                "none" if name == REFERENCE else found.subject.artefact.quantization,
            ]
        )
    return table(rows)


def _closed(value: float, worst: float, best: float) -> str:
    return f"{(worst - value) / (worst - best):.1%}" if worst > best else "–"


def _verdict(found: Calibration) -> str:
    best = found.chosen
    if found.written is None:
        return (
            "nothing was written: no rung beats the 4-bit weights, "
            f"{found.subject.artefact.path} stays as it was"
        )
    gated = sum(one.gate is not None for one in best.factors.values())
    return (
        f"{found.written}: {best.rung}, {len(best.factors)} compensators ({gated} gated), "
        f"{best.compensator_bytes} bytes; served as variant w4+ec"
    )
