"""From paths of checkpoints to the models that are compared: full precision, ``w4``, ``w4+ec``."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from spearhead.errors import CalibrationError, CheckpointError, ModelMismatch
from spearhead.model.checkpoint import FP16, W4, W4_EC, Checkpoint, open_checkpoint
from spearhead.model.checkpoint.layout import check_groups
from spearhead.model.checkpoint.origin import recorded_revision
from spearhead.model.checkpoint.variants import quantized_bytes
from spearhead.model.loading import load_tokenizer
from spearhead.model.quantization import QuantizationScheme, dequantize, rtn
from spearhead.quant.device import free_memory_bytes
from spearhead.quant.evaluation.model_variant import EvaluatedModel, compensated_linear
from spearhead.quant.layers import (
    LayerSource,
    Replace,
    ResidentLayers,
    StreamedLayers,
    model_bytes,
    streaming_notice,
)
from spearhead.tokenizer import Tokenizer

_MEMORY_SHARE = 0.6
"""Of what is free now; the rest is for hidden states and log-probabilities."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedModels:
    """What an evaluation compares.

    Attributes:
        reference: Full precision.
        variants: The others.
        drafters: Draft models, in the order asked for.
        tokenizer: Of all of them.
        revision: Digest of the reference's checkpoint.
        compensated: Where checkpoints with compensators lie.
    """

    reference: EvaluatedModel
    variants: tuple[EvaluatedModel, ...]
    drafters: tuple[EvaluatedModel, ...]
    tokenizer: Tokenizer
    revision: str
    compensated: tuple[Path, ...]


@dataclass(slots=True, kw_only=True)
class ModelOpener:
    """Opens checkpoints; layers stay in memory while they fit, and are read again and again where not.

    Attributes:
        dtype: Compute type.
        device: Where everything is computed.
        memory_bytes: Left for layers.
        stack: Closes what was opened.
        tell: Told in a sentence when layers are not kept in memory.
    """

    dtype: torch.dtype
    device: torch.device
    memory_bytes: int
    stack: ExitStack
    tell: Callable[[str], None]

    def open(self, path: str) -> Checkpoint:
        """An open checkpoint.

        Raises:
            CheckpointError: See :func:`open_checkpoint`.
        """
        return self.stack.enter_context(closing(open_checkpoint(path)))

    def full_precision(self, checkpoint: Checkpoint, name: str = FP16) -> EvaluatedModel:
        """A checkpoint as it is, such as the reference or a draft model.

        Raises:
            CheckpointError: It is quantised.
        """
        if checkpoint.quantization:
            raise CheckpointError(f"{checkpoint.path} is quantised; name the full-precision checkpoint")
        source, streamed = self._place(checkpoint)
        return EvaluatedModel(
            name=name,
            source=source,
            quantization=f"full precision, {checkpoint.weight_dtype}",
            served_bytes=checkpoint.stored_bytes,
            streamed=streamed,
        )

    def quantized(self, checkpoint: Checkpoint, prefix: str = "") -> list[EvaluatedModel]:
        """The ``w4`` of an artefact and, where it has compensators, its ``w4+ec``, on the same layers."""
        source, streamed = self._place(checkpoint)
        w4 = EvaluatedModel(
            name=prefix + W4,
            source=source,
            quantization=checkpoint.quantization,
            served_bytes=checkpoint.stored_bytes,
            streamed=streamed,
        )
        found = checkpoint.compensators
        if found is None:
            return [w4]
        placed = {
            name: compensator.placed(row_offset=0, device=self.device)
            for name, compensator in found.by_module.items()
        }
        gated = sum(compensator.gate is not None for compensator in placed.values())
        compensated = EvaluatedModel(
            name=prefix + W4_EC,
            source=source,
            linear=compensated_linear(placed),
            quantization=f"{checkpoint.quantization} + {len(placed)} compensators, {gated} gated",
            served_bytes=checkpoint.stored_bytes + found.stored_bytes,
            baseline=w4.name,
            streamed=streamed,
        )
        return [w4, compensated]

    def rounded(self, checkpoint: Checkpoint, scheme: QuantizationScheme, prefix: str = "") -> EvaluatedModel:
        """A ``w4`` that is rounded to nearest while it is loaded.

        Raises:
            CheckpointError: The checkpoint is quantised, or the scheme does not fit it.
        """
        if checkpoint.quantization:
            raise CheckpointError(f"{checkpoint.path} is quantised already; {scheme} would have no effect")
        check_groups(checkpoint.config, scheme)
        scale_dtype: torch.dtype = getattr(torch, checkpoint.weight_dtype)

        def replace(_: str, weight: Tensor) -> Tensor:
            return dequantize(*rtn(weight, scheme, scale_dtype))

        source, streamed = self._place(checkpoint, replace)
        return EvaluatedModel(
            name=prefix + W4,
            source=source,
            quantization=f"{scheme.description}, round to nearest",
            served_bytes=quantized_bytes(checkpoint, scheme),
            streamed=streamed,
        )

    def _place(self, checkpoint: Checkpoint, replace: Replace | None = None) -> tuple[LayerSource, bool]:
        streamed = StreamedLayers(checkpoint, dtype=self.dtype, device=self.device, replace=replace)
        needed = model_bytes(checkpoint, self.dtype)
        if needed > self.memory_bytes:
            self.tell(streaming_notice(checkpoint.path, needed, self.memory_bytes))
            return streamed, True
        self.memory_bytes -= needed
        return ResidentLayers(streamed), False


@contextmanager
def opened_models(
    paths: Sequence[str],
    *,
    schemes: Sequence[QuantizationScheme] = (),
    drafters: Sequence[str] = (),
    dtype: torch.dtype,
    device: torch.device,
    memory_bytes: int = 0,
    tell: Callable[[str], None] = lambda _sentence: None,
) -> Iterator[OpenedModels]:
    """Opens every variant that some checkpoints offer.

    The first full-precision checkpoint is the reference; without one, the source of the first quantised one
    that names it. A single quantised model gives ``w4`` and ``w4+ec``; of several, names start with theirs.

    Args:
        paths: Folders, ``.gguf`` files or hub ids.
        schemes: The reference is also evaluated rounded to each of these.
        drafters: Full-precision draft models, likewise.
        dtype: Compute type.
        device: Where everything is computed.
        memory_bytes: For layers; 0 = most of what is free.
        tell: Told sentences for people: what does not fit into memory.

    Raises:
        CheckpointError: A checkpoint cannot be used.
        CalibrationError: No full-precision checkpoint.
        ModelMismatch: Tokenizers or vocabularies differ, or a quantised model was made from another one.
    """
    with ExitStack() as stack:
        limit = memory_bytes or int(free_memory_bytes(device) * _MEMORY_SHARE)
        opener = ModelOpener(dtype=dtype, device=device, memory_bytes=limit, stack=stack, tell=tell)
        checkpoints = [opener.open(path) for path in paths]
        base = _reference(opener, checkpoints)
        labelled = [
            (_label(path), one) for path, one in zip(paths, checkpoints, strict=True) if one is not base
        ]
        others = [checkpoint for _, checkpoint in labelled]
        drafting = [opener.open(path) for path in drafters]
        tokenizer = check_tokenizers([base, *others, *drafting])
        _check_vocabularies(base, others)
        _check_sources(base, others)
        reference = opener.full_precision(base)
        alone = len(schemes) + sum(bool(one.quantization) for one in others) == 1
        variants = [opener.rounded(base, scheme, _prefix(str(scheme), alone)) for scheme in schemes]
        for label, checkpoint in labelled:
            if checkpoint.quantization:
                variants += opener.quantized(checkpoint, _prefix(label, alone))
            else:
                variants.append(opener.full_precision(checkpoint, _prefix(label, False) + FP16))
        yield OpenedModels(
            reference=reference,
            variants=tuple(variants),
            drafters=tuple(
                opener.full_precision(one, _label(path)) for path, one in zip(drafters, drafting, strict=True)
            ),
            tokenizer=tokenizer,
            revision=base.revision,
            compensated=tuple(one.path for one in others if one.compensators is not None),
        )


def check_tokenizers(checkpoints: Sequence[Checkpoint]) -> Tokenizer:
    """The tokenizer that all checkpoints share.

    Raises:
        ModelMismatch: Theirs differ.
    """
    first, *rest = (
        (checkpoint, load_tokenizer(checkpoint.path, checkpoint.config)) for checkpoint in checkpoints
    )
    for checkpoint, tokenizer in rest:
        if tokenizer.hash != first[1].hash:
            raise ModelMismatch(
                f"{checkpoint.path} and {first[0].path} have different tokenizers; distributions over "
                "different tokens cannot be compared, evaluate them apart"
            )
    return first[1]


def _check_vocabularies(base: Checkpoint, others: Sequence[Checkpoint]) -> None:
    for checkpoint in others:
        if checkpoint.config.vocab_size != base.config.vocab_size:
            raise ModelMismatch(
                f"{checkpoint.path} has a vocabulary of {checkpoint.config.vocab_size}, {base.path} one of "
                f"{base.config.vocab_size}; evaluate them apart"
            )


def _check_sources(base: Checkpoint, others: Sequence[Checkpoint]) -> None:
    """What a quantised model lost cannot be read from weights that it was not made from."""
    known = {one.revision for one in (base, *others) if not one.quantization}
    for checkpoint in others:
        recorded = recorded_revision(checkpoint)
        if recorded and recorded not in known:
            raise ModelMismatch(
                f"{checkpoint.path} was made from another checkpoint than {base.path}: revision {recorded}, "
                f"here {base.revision}. Give the one it was made from, or quantise again"
            )


def _reference(opener: ModelOpener, checkpoints: Sequence[Checkpoint]) -> Checkpoint:
    for checkpoint in checkpoints:
        if not checkpoint.quantization:
            return checkpoint
    for checkpoint in checkpoints:
        if checkpoint.full_precision_source is not None:
            return opener.open(checkpoint.full_precision_source.location)
    raise CalibrationError(
        "no model is in full precision and none names its source on this machine; give the full-precision "
        "checkpoint as well, since everything is measured against it"
    )


def _label(path: str) -> str:
    """A folder's or file's own name, or a whole hub id."""
    return Path(path).resolve().name.removesuffix(".gguf") if Path(path).exists() else path


def _prefix(label: str, alone: bool) -> str:
    """What stands before a variant's name: nothing while there is one quantised model only."""
    return "" if alone else f"{label}:"
