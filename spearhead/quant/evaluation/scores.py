"""The numbers of a report, from the metrics of every token; pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from spearhead.quant.evaluation.bootstrap import Interval, PairedBootstrap, Samples
from spearhead.quant.evaluation.measurement import Measurement, TokenArray
from spearhead.quant.evaluation.model_variant import EvaluatedModel

_MARGINS = (0.0, 0.1, 0.5, 1.0, 2.0, 4.0, float("inf"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A metric over all scored tokens."""

    mean: float
    median: float
    p99: float
    p999: float
    maximum: float

    @classmethod
    def of(cls, values: TokenArray) -> "Spread":
        """Of the numbers in an array; NaN does not count."""
        found = values[~np.isnan(values)]
        median, p99, p999 = np.percentile(found, (50, 99, 99.9))
        return cls(
            mean=float(found.mean(dtype=np.float64)),
            median=float(median),
            p99=float(p99),
            p999=float(p999),
            maximum=float(found.max()),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MarginBin:
    """How often the best token flips where full precision's two best logits are some way apart.

    Attributes:
        low: Smallest margin, included.
        high: Largest margin, excluded; ``None`` = no bound.
        tokens: Tokens with such a margin.
        flipped: Share of them whose best token is another.
    """

    low: float
    high: float | None
    tokens: int
    flipped: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One variant against another on the same tokens, by paired bootstrap over segments.

    Attributes:
        variant: The one.
        against: The other.
        delta_nll: Difference in nats a token; negative: ``variant`` is better.
        perplexity_ratio: Perplexity of ``variant`` over that of ``against``.
        delta_kl: Difference of mean KL to full precision in nats.
    """

    variant: str
    against: str
    delta_nll: Interval
    perplexity_ratio: Interval
    delta_kl: Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantScore:
    """One variant on one text. A percentage never stands alone: all that it hides is beside it.

    Attributes:
        variant: Its name.
        quantization: Quantiser and convention.
        served_bytes: Of its weights.
        perplexity: exp of the mean negative log-likelihood.
        kl: KL(full precision‖variant) in nats a token.
        kl_mean: Its mean with an interval.
        reverse_kl: KL(variant‖full precision).
        total_variation: Of the two distributions, 0 to 1.
        agreement: Share of tokens with the same best token, with an interval.
        flips: By full precision's margin.
        against_reference: Paired comparison with full precision.
        against_baseline: Paired comparison with the same weights without compensators, if there are such.
        gap_closed_percent: Of the perplexity gap between baseline and full precision; ``None`` without a
            baseline or without a gap.
        kl_closed_percent: Of the baseline's KL.
    """

    variant: str
    quantization: str
    served_bytes: int
    perplexity: Interval
    kl: Spread
    kl_mean: Interval
    reverse_kl: Spread
    total_variation: Spread
    agreement: Interval
    flips: tuple[MarginBin, ...]
    against_reference: Comparison
    against_baseline: Comparison | None
    gap_closed_percent: Interval | None
    kl_closed_percent: Interval | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TextScores:
    """All models on one text, the reference first: its KL is the error of the measurement itself.

    Attributes:
        text: Name of the text.
        sha256: Of the text.
        token_count: Of the whole text.
        scored_token_count: Of these, scored.
        segment_count: Segments that were scored.
        first_token_ids: The first three ids.
        length: Tokens of a segment.
        stride: Tokens from one segment to the next.
        bos: Where beginning tokens are.
        scores: One a model.
    """

    text: str
    sha256: str
    token_count: int
    scored_token_count: int
    segment_count: int
    first_token_ids: tuple[int, ...]
    length: int
    stride: int
    bos: str
    scores: tuple[VariantScore, ...]


def score_text(
    measurement: Measurement, models: Sequence[EvaluatedModel], *, draws: int = 2000, seed: int = 0
) -> TextScores:
    """Turns a measurement into the numbers of a report.

    Args:
        measurement: Of the models on one text.
        models: The reference, then the variants.
        draws: Resamples of the bootstrap.
        seed: Of the resamples.
    """
    text = measurement.text
    resampled = _Resampled(measurement, draws, seed)
    return TextScores(
        text=text.name,
        sha256=text.sha256,
        token_count=text.token_count,
        scored_token_count=text.scored_token_count,
        segment_count=len(text.segments),
        first_token_ids=text.first_token_ids,
        length=text.length,
        stride=text.stride,
        bos=text.bos,
        scores=tuple(_score(model, models[0].name, measurement, resampled) for model in models),
    )


def compare(
    measurement: Measurement, variant: str, against: str, *, draws: int = 2000, seed: int = 0
) -> Comparison:
    """Any two variants of a measurement, paired."""
    return _Resampled(measurement, draws, seed).compare(variant, against)


class _Resampled:
    """Means of all variants on the same resamples."""

    def __init__(self, measurement: Measurement, draws: int, seed: int) -> None:
        self.bootstrap = PairedBootstrap(len(measurement.text.segments), draws=draws, seed=seed)
        self.nll: Mapping[str, Samples] = {
            name: self.bootstrap.means(found.nll) for name, found in measurement.variants.items()
        }
        self.kl: Mapping[str, Samples] = {
            name: self.bootstrap.means(found.kl) for name, found in measurement.variants.items()
        }

    def compare(self, variant: str, against: str) -> Comparison:
        difference = self.nll[variant] - self.nll[against]
        return Comparison(
            variant=variant,
            against=against,
            delta_nll=self.bootstrap.interval(difference, null=0),
            perplexity_ratio=self.bootstrap.interval(np.exp(difference), null=1),
            delta_kl=self.bootstrap.interval(self.kl[variant] - self.kl[against], null=0),
        )

    def gap_closed(self, variant: str, baseline: str, reference: str) -> Interval | None:
        worst, best = np.exp(self.nll[baseline]), np.exp(self.nll[reference])
        if worst[0] <= best[0]:
            return None
        return self.bootstrap.interval(100 * (worst - np.exp(self.nll[variant])) / (worst - best))

    def kl_closed(self, variant: str, baseline: str) -> Interval | None:
        worst = self.kl[baseline]
        return self.bootstrap.interval(100 * (worst - self.kl[variant]) / worst) if worst[0] > 0 else None


def _score(
    model: EvaluatedModel, reference: str, measurement: Measurement, resampled: _Resampled
) -> VariantScore:
    name, baseline = model.name, model.baseline
    found, bootstrap = measurement.variants[name], resampled.bootstrap
    return VariantScore(
        variant=name,
        quantization=model.quantization,
        served_bytes=model.served_bytes,
        perplexity=bootstrap.interval(np.exp(resampled.nll[name])),
        kl=Spread.of(found.kl),
        kl_mean=bootstrap.interval(resampled.kl[name]),
        reverse_kl=Spread.of(found.reverse_kl),
        total_variation=Spread.of(found.total_variation),
        agreement=bootstrap.interval(bootstrap.means(found.agrees)),
        flips=_flips(found.agrees, measurement.reference.margin),
        against_reference=resampled.compare(name, reference),
        against_baseline=resampled.compare(name, baseline) if baseline else None,
        gap_closed_percent=resampled.gap_closed(name, baseline, reference) if baseline else None,
        kl_closed_percent=resampled.kl_closed(name, baseline) if baseline else None,
    )


def _flips(agrees: TokenArray, margin: TokenArray) -> tuple[MarginBin, ...]:
    bins = []
    for low, high in pairwise(_MARGINS):
        inside = (margin >= low) & (margin < high)
        count = int(inside.sum())
        flipped = float(1 - agrees[inside].mean(dtype=np.float64)) if count else 0.0
        bins.append(
            MarginBin(low=low, high=high if np.isfinite(high) else None, tokens=count, flipped=flipped)
        )
    return tuple(bins)
