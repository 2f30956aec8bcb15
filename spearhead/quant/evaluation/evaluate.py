"""Everything about some variants on some texts, as frozen data that goes into JSON.

Published numbers to hold results against: Llama-2-7B has perplexity 5.47 on WikiText-2 with L = 2048 and
5.12 with 4096; its 8.71 in lm-evaluation-harness is over words, not tokens. Llama-3-8B has 6.14 at 2048 and
5.54 at 8192. Of the KL: llama.cpp's Q8_0 of Llama-3-8B has 0.0014, Q6_K 0.0057, Q5_K_M 0.011, Q4_K_M 0.029.
One text alone can mislead: some quantisers ruin one and leave another as it was.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial

from torch import Tensor

from spearhead.errors import CalibrationError
from spearhead.quant.evaluation.acceptance import (
    Acceptance,
    AcceptanceSettings,
    check_acceptance,
    measure_acceptance,
)
from spearhead.quant.evaluation.drafters import Drafter
from spearhead.quant.evaluation.measurement import measure_text
from spearhead.quant.evaluation.model_variant import EvaluatedModel
from spearhead.quant.evaluation.scores import TextScores, score_text
from spearhead.quant.evaluation.texts import EvaluationText

_SELF_DIVERGENCE = 1e-6

Report = Callable[[str, int, int], None]
"""Told what is being done, and how much of how much of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptancePlan:
    """What acceptance is measured with.

    Attributes:
        drafters: Each is paired with each model.
        prompts: int64 ``(P, N)``.
        settings: How.
        vocab_size: Of the tokenizer.
    """

    drafters: Sequence[Drafter]
    prompts: Tensor
    settings: AcceptanceSettings
    vocab_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Variants side by side.

    Attributes:
        reference: Name of the full-precision model.
        dtype: Compute type of the layers; the head and all metrics are float32.
        device: Where it was computed.
        draws: Resamples of each interval.
        seed: Of the resamples.
        texts: One a text.
        acceptance: Of drafts; ``None`` when it was not measured.
    """

    reference: str
    dtype: str
    device: str
    draws: int
    seed: int
    texts: tuple[TextScores, ...]
    acceptance: Acceptance | None = None

    def as_json(self) -> dict[str, object]:
        """JSON values; numbers that are not finite become null."""
        return {key: _plain(value) for key, value in asdict(self).items()}


def evaluate_variants(
    reference: EvaluatedModel,
    variants: Sequence[EvaluatedModel],
    texts: Sequence[EvaluationText],
    *,
    acceptance: AcceptancePlan | None = None,
    draws: int = 2000,
    seed: int = 0,
    tokens_at_once: int = 2048,
    report: Report | None = None,
) -> Evaluation:
    """Measures variants against full precision.

    Args:
        reference: Full precision.
        variants: The others; one that names a baseline has it among them.
        texts: Use at least two; one can mislead.
        acceptance: Also measure what happens to speculation.
        draws: Resamples of the bootstrap.
        seed: Of the resamples.
        tokens_at_once: Tokens that pass through a layer together.
        report: Told the progress.

    Raises:
        CalibrationError: Texts of one name, numbers that are not finite, a measurement that sees a
            difference between the reference and itself, a baseline that is missing, or as
            :func:`measure_acceptance`.
        ModelMismatch: Vocabularies differ.
    """
    models = [reference, *variants]
    _check_baselines(models)
    _check_names(texts)
    if acceptance is not None:
        check_acceptance(models, acceptance.prompts, acceptance.settings)
    tell = report or _silent
    scored = []
    for text in texts:
        measurement = measure_text(
            reference,
            variants,
            text,
            tokens_at_once=tokens_at_once,
            progress=partial(tell, text.name),
        )
        scored.append(score_text(measurement, models, draws=draws, seed=seed))
        check_self(scored[-1])
    found = None
    if acceptance is not None:
        found = measure_acceptance(
            reference,
            variants,
            acceptance.drafters,
            acceptance.prompts,
            acceptance.settings,
            vocab_size=acceptance.vocab_size,
            draws=draws,
            progress=partial(tell, "acceptance"),
        )
    return Evaluation(
        reference=reference.name,
        dtype=str(reference.source.dtype).removeprefix("torch."),
        device=str(reference.source.device),
        draws=draws,
        seed=seed,
        texts=tuple(scored),
        acceptance=found,
    )


def check_self(scores: TextScores) -> None:
    """The measurement's own test: the reference must not differ from itself.

    Raises:
        CalibrationError: It does.
    """
    itself = scores.scores[0]
    if abs(itself.kl.mean) >= _SELF_DIVERGENCE or itself.agreement.value != 1:
        raise CalibrationError(
            f"full precision differs from itself on {scores.text}: KL {itself.kl.mean:.2g}, agreement "
            f"{itself.agreement.value:.2%}; the device computes the same product in two ways, use the CPU"
        )


def _check_baselines(models: Sequence[EvaluatedModel]) -> None:
    names = {model.name for model in models}
    for model in models:
        if model.baseline and model.baseline not in names:
            raise CalibrationError(f"{model.name} is measured from {model.baseline}, which is not evaluated")


def _check_names(texts: Sequence[EvaluationText]) -> None:
    names = [text.name for text in texts]
    for name in names:
        if names.count(name) > 1:
            raise CalibrationError(f"two texts are called {name}; rename a file, since results go by names")


def _silent(label: str, done: int, total: int) -> None:
    """Tells nobody."""


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
