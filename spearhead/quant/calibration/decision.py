"""Stage 8: which rung the artefact gets; each must beat the last one kept on held-out sequences. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from spearhead.quant.evaluation.bootstrap import Interval, PairedBootstrap
from spearhead.quant.evaluation.sign_flip import sign_flip_p_value
from spearhead.quant.report import Rung

_SIGNIFICANCE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A rung and its held-out loss.

    Attributes:
        rung: Which.
        kl: float64 ``(S,)``: KL to full precision of each held-out sequence, nats a token.
    """

    rung: Rung
    kl: Tensor

    @property
    def mean(self) -> float:
        """Over sequences."""
        return float(self.kl.mean())


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What became of a rung.

    Attributes:
        rung: Which.
        held_out_kl: Mean over sequences, nats a token.
        against: The rung that it had to beat; ``None`` for the first.
        difference: Its loss minus that of ``against``, paired, with a 95% interval; ``None`` for the first.
        kept: Whether the next rung has to beat this one.
        sentence: Why, with the numbers.
    """

    rung: Rung
    held_out_kl: float
    against: Rung | None
    difference: Interval | None
    kept: bool
    sentence: str


def decide(
    rungs: Sequence[Measured], *, draws: int, seed: int, forced: Rung | None = None
) -> tuple[Decision, ...]:
    """Keeps a rung whose interval of the difference to the last one kept lies below 0, and not by chance.

    The interval of a few sequences is too narrow, so an exact test of the mean has to agree: a rung that is
    no better than the last is kept in at most 5% of cases, of six sequences or of six hundred.

    Args:
        rungs: The 4-bit weights alone first.
        draws: Resamples of the bootstrap, and sign flips where there are too many to try all.
        seed: Of both.
        forced: A rung that is kept whatever its numbers.
    """
    first, *rest = rungs
    sentence = f"{first.rung}: held-out KL {first.mean:.4g} nats a token, the start"
    decisions = [
        Decision(
            rung=first.rung,
            held_out_kl=first.mean,
            against=None,
            difference=None,
            kept=True,
            sentence=sentence,
        )
    ]
    bootstrap = PairedBootstrap(len(first.kl), draws=draws, seed=seed)
    last = first
    for rung in rest:
        values = (rung.kl - last.kl).numpy()
        difference = bootstrap.interval(bootstrap.means(values.astype(np.float32)[:, None]), null=0.0)
        chance = sign_flip_p_value(values, draws=draws, seed=seed)
        wins = _lies_below(difference) and chance <= _SIGNIFICANCE
        kept = wins or rung.rung == forced
        decisions.append(
            Decision(
                rung=rung.rung,
                held_out_kl=rung.mean,
                against=last.rung,
                difference=difference,
                kept=kept,
                sentence=_sentence(rung, last, difference, chance, wins, kept),
            )
        )
        if kept:
            last = rung
    return tuple(decisions)


def chosen(decisions: Sequence[Decision]) -> Rung:
    """The last rung that was kept."""
    return [decision.rung for decision in decisions if decision.kept][-1]


def _lies_below(difference: Interval) -> bool:
    """Whether the interval is below 0, of enough sequences that this means something."""
    if difference.high is None or difference.p_value is None:
        return False
    return difference.high < 0 and difference.p_value <= _SIGNIFICANCE


def _sentence(
    rung: Measured, last: Measured, difference: Interval, chance: float, wins: bool, kept: bool
) -> str:
    numbers = f"held-out KL {rung.mean:.4g} against {last.mean:.4g} of {last.rung}"
    if difference.low is None or difference.high is None:
        verdict = "kept as forced" if kept else "dropped"
        return f"{rung.rung}: {numbers}; a single held-out sequence cannot decide, {verdict}"
    interval = f"{difference.value:+.3g} (95%: {difference.low:+.3g} to {difference.high:+.3g})"
    verdict = "kept" if wins else "not proven better"
    if difference.high < 0 and not wins:
        verdict += f", chance gives as much in {100 * chance:.2g}% of cases"
    return f"{rung.rung}: {numbers} on {len(rung.kl)} sequences, difference {interval}: {verdict}" + (
        "" if wins else ", kept as forced" if kept else ", dropped"
    )
