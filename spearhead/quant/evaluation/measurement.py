"""Runs models over a text and keeps every token's metrics, so that any statistic can be had later."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from spearhead.errors import CalibrationError, ModelMismatch
from spearhead.quant.evaluation.metrics import (
    CHUNK_BYTES,
    Projection,
    ReferenceRows,
    VariantRows,
    token_metrics,
)
from spearhead.quant.evaluation.model_variant import EvaluatedModel
from spearhead.quant.evaluation.texts import EvaluationText

TokenArray = npt.NDArray[np.float32]
"""float32 ``(S, L - 1)``, NaN where a token is not scored."""

Progress = Callable[[int, int], None]
"""Called with layers done and layers in all, each of one segment and model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceTokens:
    """The reference p on a text.

    Attributes:
        nll: Negative log-likelihood of each token in nats.
        margin: Gap between the two best logits.
    """

    nll: TokenArray
    margin: TokenArray


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantTokens:
    """A variant q on a text, against p.

    Attributes:
        nll: Negative log-likelihood of each token in nats.
        kl: KL(p‖q) in nats.
        reverse_kl: KL(q‖p) in nats.
        total_variation: Between p and q.
        agrees: 1 where both have the same best token.
    """

    nll: TokenArray
    kl: TokenArray
    reverse_kl: TokenArray
    total_variation: TokenArray
    agrees: TokenArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """All models on one text.

    Attributes:
        text: The text.
        reference: Full precision.
        variants: By name, the reference itself among them: its KL shows the error of the measurement.
    """

    text: EvaluationText
    reference: ReferenceTokens
    variants: Mapping[str, VariantTokens]


@torch.no_grad()
def measure_text(
    reference: EvaluatedModel,
    variants: Sequence[EvaluatedModel],
    text: EvaluationText,
    *,
    tokens_at_once: int = 2048,
    hidden_bytes: int = 2 << 30,
    chunk_bytes: int = CHUNK_BYTES,
    progress: Progress | None = None,
) -> Measurement:
    """Measures variants against a reference on one text.

    Args:
        reference: Full precision, p.
        variants: The q's; all models are on one device.
        text: What is scored.
        tokens_at_once: Tokens that pass through a layer together.
        hidden_bytes: Bound on the final hidden states of all models, when a layer costs a read: as many
            segments as fit pass each layer together.
        chunk_bytes: Bound on one array of log-probabilities.
        progress: Called at the start and after each layer.

    Raises:
        ModelMismatch: Vocabularies differ, names repeat, or token ids are beyond the vocabulary.
        CalibrationError: Segments are longer than a model's context; a model's hidden states or logits hold
            NaN or infinity, or do not fit into memory.
    """
    models = [reference, *variants]
    _check(models, text)
    size = _segments_at_once(models, text, tokens_at_once, hidden_bytes)
    run = _Run(
        models=models,
        heads=_float_heads(models),
        text=text,
        tokens_at_once=tokens_at_once,
        chunk_bytes=chunk_bytes,
        progress=progress,
    )
    try:
        rows = [run.measure(start, start + size) for start in range(0, len(text.segments), size)]
    except torch.OutOfMemoryError as error:
        raise CalibrationError(
            f"{tokens_at_once} tokens at once and hidden states of {size} segments do not fit into the "
            f"memory of {reference.source.device}; lower tokens_at_once"
        ) from error
    return _collect(models, text, rows)


class _Run:
    """The models over the segments of one text, some at a time."""

    def __init__(
        self,
        *,
        models: Sequence[EvaluatedModel],
        heads: Mapping[str, Tensor],
        text: EvaluationText,
        tokens_at_once: int,
        chunk_bytes: int,
        progress: Progress | None,
    ) -> None:
        self._models = models
        self._heads = heads
        self._text = text
        self._tokens_at_once = tokens_at_once
        self._chunk_bytes = chunk_bytes
        self._progress = progress
        self._done = 0
        self._total = len(text.segments) * sum(model.source.config.layer_count for model in models)
        self._advance(0)

    def measure(self, start: int, stop: int) -> tuple[ReferenceRows, list[VariantRows]]:
        """The rows of the scored tokens of some segments."""
        segments = self._text.segments[start:stop].to(self._models[0].source.device)
        scored = self._text.scored[start:stop].to(segments.device)
        projections = []
        for model in self._models:
            hidden = model.final_hidden(
                segments,
                tokens_at_once=self._tokens_at_once,
                on_layer=partial(self._advance, len(segments)),
            )
            hidden = hidden[:, :-1][scored]
            _check_finite(model, hidden, start)
            projections.append(Projection(hidden=hidden, head=self._heads[model.name]))
        targets = segments[:, 1:][scored]
        rows = token_metrics(projections[0], projections, targets, chunk_bytes=self._chunk_bytes)
        for model, found in zip(self._models, rows[1], strict=True):  # the reference comes first
            _check_rows(model, found, start)
        return rows

    def _advance(self, segments: int) -> None:
        self._done += segments
        if self._progress is not None:
            self._progress(self._done, self._total)


def _check(models: Sequence[EvaluatedModel], text: EvaluationText) -> None:
    names = [model.name for model in models[1:]]
    repeated = sorted({name for name in names if names.count(name) > 1} | ({models[0].name} & {*names}))
    if repeated:
        raise ModelMismatch(f"two models are called {repeated[0]}; give each its own name")
    sizes = {model.name: model.head.shape[0] for model in models}
    if len({*sizes.values()}) > 1:
        shown = ", ".join(f"{name} has {size} tokens" for name, size in sizes.items())
        raise ModelMismatch(f"vocabularies differ: {shown}; only models of one vocabulary can be compared")
    largest = int(text.segments.max())
    if largest >= models[0].head.shape[0]:
        raise ModelMismatch(
            f"text {text.name} has token id {largest}, the models have {models[0].head.shape[0]} tokens; "
            "it was made with another tokenizer"
        )
    for model in models:
        if text.length > model.source.config.context_length:
            raise CalibrationError(
                f"segments of {text.length} tokens of text {text.name} exceed the context of {model.name}, "
                f"{model.source.config.context_length} tokens; cut shorter ones"
            )


def _float_heads(models: Sequence[EvaluatedModel]) -> dict[str, Tensor]:
    """Each head in float32 on the reference's device; models that share one share the copy."""
    copies: dict[int, Tensor] = {}
    for model in models:
        copies.setdefault(model.head.data_ptr(), model.head.to(models[0].source.device).float())
    return {model.name: copies[model.head.data_ptr()] for model in models}


def _segments_at_once(
    models: Sequence[EvaluatedModel], text: EvaluationText, tokens_at_once: int, hidden_bytes: int
) -> int:
    if not any(model.streamed for model in models):
        return max(1, tokens_at_once // text.length)
    token_bytes = sum(model.source.config.hidden_size * model.source.dtype.itemsize for model in models)
    return max(1, hidden_bytes // (token_bytes * text.length))


def _check_finite(model: EvaluatedModel, hidden: Tensor, first_segment: int) -> None:
    if not bool(torch.isfinite(hidden).all()):
        dtype = str(model.source.dtype).removeprefix("torch.")
        raise CalibrationError(
            f"hidden states of {model.name} hold NaN or infinity in or after segment {first_segment}; the "
            f"weights do not fit the compute type {dtype}, try bfloat16 or float32"
        )


def _check_rows(model: EvaluatedModel, found: VariantRows, first_segment: int) -> None:
    """Rows of scored tokens; NaN among them would later read as a token that was not scored."""
    rows = torch.stack((found.nll, found.kl, found.reverse_kl, found.total_variation))
    broken = int((~torch.isfinite(rows)).any(0).sum())
    if broken:
        raise CalibrationError(
            f"logits of {model.name} overflow on {broken} of {rows.shape[1]} tokens in or after segment "
            f"{first_segment}; its head or its final norm is damaged, make the checkpoint again"
        )


def _collect(
    models: Sequence[EvaluatedModel],
    text: EvaluationText,
    rows: Sequence[tuple[ReferenceRows, list[VariantRows]]],
) -> Measurement:
    def spread(parts: Sequence[Tensor]) -> TokenArray:
        array = torch.full(text.scored.shape, torch.nan)
        array[text.scored] = torch.cat([part.cpu() for part in parts])
        return array.numpy()

    return Measurement(
        text=text,
        reference=ReferenceTokens(
            nll=spread([part.nll for part, _ in rows]), margin=spread([part.margin for part, _ in rows])
        ),
        variants={
            model.name: VariantTokens(
                nll=spread([found[place].nll for _, found in rows]),
                kl=spread([found[place].kl for _, found in rows]),
                reverse_kl=spread([found[place].reverse_kl for _, found in rows]),
                total_variation=spread([found[place].total_variation for _, found in rows]),
                agrees=spread([found[place].agrees for _, found in rows]),
            )
            for place, model in enumerate(models)
        },
    )
