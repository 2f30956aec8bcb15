"""Training, and the rungs that were kept or dropped after it."""

import itertools
from dataclasses import dataclass
from enum import StrEnum

from spearhead.errors import CalibrationError
from spearhead.quant.report.checks import check_at_least, check_perplexity


class Rung(StrEnum):
    """Each rung must beat the last one kept."""

    W4 = "w4"
    STATIC = "static"
    TRAINED = "trained"
    GATED = "gated"


@dataclass(frozen=True, slots=True, kw_only=True)
class LossPoint:
    """Losses at one step.

    Attributes:
        step: Updates so far.
        train_kl: Of the batch, nats a token; ``None`` = not measured at this step.
        held_out_kl: Of the sequences that training never sees, nats a token; likewise.
    """

    step: int
    train_kl: float | None
    held_out_kl: float | None

    def __post_init__(self) -> None:
        check_at_least("training.points.step", self.step, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun:
    """One training of one rung from one seed.

    Attributes:
        rung: What was trained.
        seed: Of batches and of the gates' weights.
        points: Rising steps.
        best_step: Where held-out KL was least; its weights were kept.
        early_stop_step: Where training ended before its schedule did; ``None`` = it ran to the end.
    """

    rung: Rung
    seed: int
    points: tuple[LossPoint, ...]
    best_step: int
    early_stop_step: int | None

    def __post_init__(self) -> None:
        steps = [point.step for point in self.points]
        if any(later <= earlier for earlier, later in itertools.pairwise(steps)):
            raise CalibrationError(
                f"report field training.points of rung {self.rung}, seed {self.seed}: steps do not rise; "
                "give each step once, in order"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class TextScore:
    """Quality on one text: perplexity never stands without KL.

    Attributes:
        text: One of the report's texts.
        perplexity: Absolute.
        kl: Mean KL(full precision || variant), nats a token.
    """

    text: str
    perplexity: float
    kl: float

    def __post_init__(self) -> None:
        check_perplexity(f"perplexity on {self.text}", self.perplexity)


@dataclass(frozen=True, slots=True, kw_only=True)
class KlDifference:
    """Held-out KL of a rung minus that of the last one kept before it, by paired bootstrap.

    Attributes:
        mean: Nats a token; negative = better than before.
        low: Lower end of the interval.
        high: Upper end.
        confidence: Such as 0.95.
    """

    mean: float
    low: float
    high: float
    confidence: float

    def __post_init__(self) -> None:
        if not self.low <= self.high or not 0 < self.confidence < 1:
            raise CalibrationError(
                f"report field rungs.difference: interval from {self.low} to {self.high} at confidence "
                f"{self.confidence}; low <= high and a confidence between 0 and 1 are needed"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class RungResult:
    """One rung and what became of it.

    Attributes:
        rung: Which.
        compensator_bytes: Beside the 4-bit weights.
        texts: Scores on the report's texts.
        held_out_kl: On self-sampled sequences kept aside, nats a token.
        difference: Against the rung it had to beat; ``None`` for the first.
        kept: Whether the artefact may contain it.
        reason: A sentence: why it was kept or dropped.
    """

    rung: Rung
    compensator_bytes: int
    texts: tuple[TextScore, ...]
    held_out_kl: float
    difference: KlDifference | None
    kept: bool
    reason: str

    def __post_init__(self) -> None:
        check_at_least(f"rungs.{self.rung}.compensator_bytes", self.compensator_bytes, 0)
