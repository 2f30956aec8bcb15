"""Evaluation: what a quantised model lost against full precision, and what came back."""

from spearhead.quant.evaluation.acceptance import (
    Acceptance,
    AcceptanceScore,
    AcceptanceSettings,
    GreedyMatch,
    measure_acceptance,
)
from spearhead.quant.evaluation.bootstrap import Interval, PairedBootstrap
from spearhead.quant.evaluation.drafters import Drafter, LookupDrafter, ModelDrafter, Replay
from spearhead.quant.evaluation.evaluate import AcceptancePlan, Evaluation, evaluate_variants
from spearhead.quant.evaluation.measurement import Measurement, ReferenceTokens, VariantTokens, measure_text
from spearhead.quant.evaluation.model_variant import EvaluatedModel, compensated_linear
from spearhead.quant.evaluation.opening import ModelOpener, OpenedModels, check_tokenizers, opened_models
from spearhead.quant.evaluation.scores import Comparison, TextScores, VariantScore, compare, score_text
from spearhead.quant.evaluation.shared_context import SharedContext
from spearhead.quant.evaluation.texts import (
    EvaluationText,
    TextProtocol,
    cut_text,
    read_text,
    text_from_samples,
    text_from_sequences,
)

__all__ = [
    "Acceptance",
    "AcceptancePlan",
    "AcceptanceScore",
    "AcceptanceSettings",
    "Comparison",
    "Drafter",
    "EvaluatedModel",
    "Evaluation",
    "EvaluationText",
    "GreedyMatch",
    "Interval",
    "LookupDrafter",
    "Measurement",
    "ModelDrafter",
    "ModelOpener",
    "OpenedModels",
    "PairedBootstrap",
    "ReferenceTokens",
    "Replay",
    "SharedContext",
    "TextProtocol",
    "TextScores",
    "VariantScore",
    "VariantTokens",
    "check_tokenizers",
    "compare",
    "compensated_linear",
    "cut_text",
    "evaluate_variants",
    "measure_acceptance",
    "measure_text",
    "opened_models",
    "read_text",
    "score_text",
    "text_from_samples",
    "text_from_sequences",
]
