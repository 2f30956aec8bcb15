"""Evaluation: what a quantised model lost against full precision, and what came back."""

from spearhead.quant.evaluation.bootstrap import Interval, PairedBootstrap
from spearhead.quant.evaluation.measurement import Measurement, ReferenceTokens, VariantTokens, measure_text
from spearhead.quant.evaluation.model_variant import EvaluatedModel, compensated_linear
from spearhead.quant.evaluation.texts import (
    EvaluationText,
    TextProtocol,
    cut_text,
    read_text,
    text_from_sequences,
)

__all__ = [
    "EvaluatedModel",
    "EvaluationText",
    "Interval",
    "Measurement",
    "PairedBootstrap",
    "ReferenceTokens",
    "TextProtocol",
    "VariantTokens",
    "compensated_linear",
    "cut_text",
    "measure_text",
    "read_text",
    "text_from_sequences",
]
