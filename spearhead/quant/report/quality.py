"""Quality against bytes, and whole evaluations of variants side by side."""

from dataclasses import dataclass
from enum import StrEnum

from spearhead.quant.report.checks import check_at_least, check_perplexity, check_share, check_shown
from spearhead.quant.report.ladder import TextScore


@dataclass(frozen=True, slots=True, kw_only=True)
class TextReference:
    """A text, how it was scored, and the two ends that all results lie between.

    Attributes:
        name: Such as ``WikiText-2``.
        digest: SHA-256 of its bytes.
        protocol: Segment length, stride, BOS policy, for people.
        token_count: Tokens that were scored.
        full_precision_perplexity: The lower end.
        w4_perplexity: The upper end: 4-bit weights alone.
        w4_kl: Their mean KL to full precision, nats a token.
    """

    name: str
    digest: str
    protocol: str
    token_count: int
    full_precision_perplexity: float
    w4_perplexity: float
    w4_kl: float

    def __post_init__(self) -> None:
        check_perplexity(f"texts.{self.name}.full_precision_perplexity", self.full_precision_perplexity)
        check_perplexity(f"texts.{self.name}.w4_perplexity", self.w4_perplexity)
        check_at_least(f"texts.{self.name}.token_count", self.token_count, 1)

    def gap_closed_percent(self, perplexity: float) -> float | None:
        """Part of the perplexity gap that a variant closes; ``None`` = four bits opened none."""
        return _closed_percent(perplexity, self.w4_perplexity, self.full_precision_perplexity)

    def kl_closed_percent(self, kl: float) -> float | None:
        """Part of the KL that a variant closes; ``None`` = there was none."""
        return _closed_percent(kl, self.w4_kl, 0)


class SeriesKind(StrEnum):
    """Decides how a series is drawn."""

    OURS = "ours"
    BASELINE = "baseline"
    CONTROL = "control"


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityPoint:
    """One set of compensators.

    Attributes:
        budget_percent: Bytes allowed, in percent of the 4-bit artefact's; for a fixed rank, bytes used.
        compensator_bytes: Bytes used.
        mean_rank: Over all linear modules, those without a compensator counted as 0.
        seed: Of what is random about it; ``None`` = nothing.
        texts: Scores.
    """

    budget_percent: float
    compensator_bytes: int
    mean_rank: float
    seed: int | None
    texts: tuple[TextScore, ...]

    def __post_init__(self) -> None:
        check_at_least("series.points.budget_percent", self.budget_percent, 0)
        check_at_least("series.points.compensator_bytes", self.compensator_bytes, 0)
        check_at_least("series.points.mean_rank", self.mean_rank, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class QualitySeries:
    """One method over several budgets (and seeds).

    Attributes:
        name: Such as ``QERA-exact``; unique.
        kind: Ours, a published method, or a control (random modules, uniform placement).
        points: In any order.
    """

    name: str
    kind: SeriesKind
    points: tuple[QualityPoint, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SidePoint:
    """One side of a comparison at equal perplexity."""

    series: str
    compensator_bytes: int
    perplexity: float
    kl: float

    def __post_init__(self) -> None:
        check_at_least(f"byte_ratios.{self.series}.compensator_bytes", self.compensator_bytes, 1)
        check_perplexity(f"byte_ratios.{self.series}.perplexity", self.perplexity)


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteRatio:
    """Bytes that a method and a baseline need for one perplexity.

    Attributes:
        text: One of the report's texts.
        convention: Of the quantiser below both.
        ours: The point that sets the perplexity.
        baseline: The baseline's cheapest point that is no worse; if it never gets there, its best.
        reached: Whether the baseline gets there; if not, the ratio is an upper bound.
    """

    text: str
    convention: str
    ours: SidePoint
    baseline: SidePoint
    reached: bool

    def __post_init__(self) -> None:
        check_shown("byte_ratios.convention", self.convention)

    @property
    def percent(self) -> float:
        """Our bytes in percent of the baseline's."""
        return 100 * self.ours.compensator_bytes / self.baseline.compensator_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantRow:
    """One variant on one text. Percentages are derived, so none can stand without what it hides.

    Attributes:
        variant: Such as ``GPTQ + trained, 1%``; unique in its table.
        convention: Of its quantiser, such as ``absmax/7.5``; ``none`` for full precision.
        perplexity: Absolute.
        full_precision_perplexity: Of the same tokens.
        start_perplexity: Of the same 4-bit weights without compensators.
        start_kl: Their mean KL.
        kl_mean: KL(full precision || variant) over tokens, nats.
        kl_median: Likewise.
        kl_p99: 99th percentile over tokens.
        top1_agreement: Share of tokens with full precision's most probable token.
        served_bytes: Weights and compensators.
    """

    variant: str
    convention: str
    perplexity: float
    full_precision_perplexity: float
    start_perplexity: float
    start_kl: float
    kl_mean: float
    kl_median: float
    kl_p99: float
    top1_agreement: float
    served_bytes: int

    def __post_init__(self) -> None:
        check_shown(f"evaluations.{self.variant}.convention", self.convention)
        for field in ("perplexity", "full_precision_perplexity", "start_perplexity"):
            check_perplexity(f"evaluations.{self.variant}.{field}", getattr(self, field))
        check_share(f"evaluations.{self.variant}.top1_agreement", self.top1_agreement)
        check_at_least(f"evaluations.{self.variant}.served_bytes", self.served_bytes, 1)

    @property
    def perplexity_ratio(self) -> float:
        """Perplexity over that of full precision."""
        return self.perplexity / self.full_precision_perplexity

    @property
    def gap_closed_percent(self) -> float | None:
        """Part of the perplexity gap that is closed; ``None`` = these 4-bit weights opened none."""
        return _closed_percent(self.perplexity, self.start_perplexity, self.full_precision_perplexity)

    @property
    def kl_closed_percent(self) -> float | None:
        """Part of the KL that is closed; ``None`` = there was none."""
        return _closed_percent(self.kl_mean, self.start_kl, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationTable:
    """Variants side by side on one text."""

    text: str
    rows: tuple[VariantRow, ...]


def _closed_percent(value: float, worst: float, best: float) -> float | None:
    return 100 * (worst - value) / (worst - best) if worst > best else None
