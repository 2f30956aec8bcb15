"""Variants on texts: perplexity and divergence of the 4-bit weights with any factors, kept as a stage."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from spearhead.model.checkpoint.factor_codec import FactorBits
from spearhead.quant.calibration.encoding import served
from spearhead.quant.calibration.models import Models
from spearhead.quant.calibration.progress import Progress
from spearhead.quant.calibration.store import StageResult, StageStore
from spearhead.quant.decoder import plain_linear
from spearhead.quant.evaluation import (
    EvaluatedModel,
    EvaluationText,
    VariantScore,
    compensated_linear,
    measure_text,
    score_text,
)
from spearhead.quant.evaluation.evaluate import check_self
from spearhead.quant.layers import LayerSource, StreamedLayers
from spearhead.quant.student import Factors

_DRAWS = 1  # intervals of these scores are not shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One variant on one text.

    Attributes:
        perplexity: Absolute.
        kl_mean: KL(full precision ‖ variant), nats a token.
        kl_median: Likewise.
        kl_p99: Likewise.
        agreement: Share of tokens with full precision's best token.
    """

    perplexity: float
    kl_mean: float
    kl_median: float
    kl_p99: float
    agreement: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """What is scored.

    Attributes:
        name: Unique among those scored together; not ``full precision``.
        key: Digest of everything that it is made of.
        factors: By module; empty = weights alone.
        weights: Other 4-bit weights than the artefact's; ``None`` = those.
    """

    name: str
    key: str
    factors: Mapping[str, Factors]
    weights: LayerSource | None = None


REFERENCE = "full precision"


class Scorer:
    """Scores variants on some texts, in float32.

    Args:
        store: Keeps scores.
        models: Full precision and 4-bit weights.
        texts: What is scored, by unique names.
        bits: How factors are stored.
        progress: Told of layers.
    """

    def __init__(
        self,
        store: StageStore,
        models: Models,
        texts: Sequence[EvaluationText],
        bits: FactorBits,
        progress: Progress,
    ) -> None:
        self.texts = texts
        self._store, self._models = store, models
        self._bits, self._progress = bits, progress

    def score(self, variants: Sequence[Variant]) -> dict[str, dict[str, Score]]:
        """Text to variant to score; full precision is among the variants as :data:`REFERENCE`.

        Raises:
            CalibrationError: Numbers that are not finite.
        """
        return {text.name: self._score(text, variants) for text in self.texts}

    def _score(self, text: EvaluationText, variants: Sequence[Variant]) -> dict[str, Score]:
        depends = {
            "subject": self._models.subject.identity,
            "text": [text.sha256, text.length, text.stride, text.bos, text.segments.shape[0]],
            "scored": int(text.scored.sum()),
            "variants": {variant.name: variant.key for variant in variants},
            "factor_bits": self._bits,
            "device": self._models.device.type,
        }
        label = f"scores on {text.name}"

        def compute(_: Path) -> StageResult:
            reference = self._evaluated(REFERENCE, self._models.teacher(), {})
            others = [
                self._evaluated(one.name, one.weights or self._models.student(), one.factors)
                for one in variants
            ]
            measurement = measure_text(
                reference,
                others,
                text,
                tokens_at_once=self._models.tokens_at_once,
                progress=lambda done, total: self._progress(label, done, total),
            )
            scores = score_text(measurement, [reference, *others], draws=_DRAWS)
            check_self(scores)
            return StageResult(
                values={"scores": {one.variant: asdict(_short(one)) for one in scores.scores}}, tensors={}
            )

        result = self._store.stage("scores", depends, compute)
        layers = self._models.subject.full.config.layer_count
        total = len(text.segments) * layers * (1 + len(variants))
        self._progress(label, total, total)
        return {name: Score(**values) for name, values in result.values["scores"].items()}

    def _evaluated(self, name: str, source: LayerSource, factors: Mapping[str, Factors]) -> EvaluatedModel:
        placed = served(factors, self._bits, self._models.device)
        return EvaluatedModel(
            name=name,
            source=source,
            linear=compensated_linear(placed) if placed else plain_linear,
            streamed=isinstance(source, StreamedLayers),
        )


def _short(score: VariantScore) -> Score:
    return Score(
        perplexity=score.perplexity.value,
        kl_mean=score.kl_mean.value,
        kl_median=score.kl.median,
        kl_p99=score.kl.p99,
        agreement=score.agreement.value,
    )
