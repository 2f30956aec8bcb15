"""Where the offline decoder takes its tensors from: all in memory, or one layer at a time from the disk."""

from collections.abc import Callable
from functools import cached_property
from math import prod
from typing import Protocol

import torch
from torch import Tensor

from spearhead.model.architecture import ModelConfig
from spearhead.model.checkpoint import Checkpoint
from spearhead.model.checkpoint.layout import EMBEDDING, FINAL_NORM, HEAD, expected_shapes, layer_name
from spearhead.model.checkpoint.loader import finite
from spearhead.quant.decoder import LayerTensors, Linear, Rotary, layer_forward, plain_linear, rms_norm

Replace = Callable[[str, Tensor], Tensor]
"""Gives what stands for a linear weight, from (full module name, its full-precision weight (N, K))."""


class LayerSource(Protocol):
    """A model that gives its layers by index."""

    @property
    def config(self) -> ModelConfig:
        """The model's shape."""

    @property
    def device(self) -> torch.device:
        """Of every tensor."""

    @property
    def dtype(self) -> torch.dtype:
        """Of every tensor."""

    @property
    def embedding(self) -> Tensor:
        """``(V, D)``."""

    @property
    def final_norm(self) -> Tensor:
        """``(D,)``."""

    @property
    def head(self) -> Tensor:
        """``(V, D)``; the embedding itself when tied."""

    def layer(self, index: int) -> LayerTensors:
        """The tensors of one layer; hold them no longer than needed."""


class StreamedLayers:
    """Reads a layer from the checkpoint whenever it is asked for; only embedding and head stay in memory.

    Args:
        checkpoint: Open, full precision or quantised (then its weights come dequantised).
        dtype: What tensors are converted to.
        device: Where they go.
        replace: Applied to every linear weight before it is converted.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        dtype: torch.dtype,
        device: torch.device,
        replace: Replace | None = None,
    ) -> None:
        self.config = checkpoint.config
        self.device = device
        self.dtype = dtype
        self._checkpoint = checkpoint
        self._replace = replace
        self._names = [
            [name for name in expected_shapes(self.config) if name.startswith(layer_name(index, ""))]
            for index in range(self.config.layer_count)
        ]

    @cached_property
    def embedding(self) -> Tensor:
        """``(V, D)``."""
        return self._tensor(EMBEDDING)

    @cached_property
    def final_norm(self) -> Tensor:
        """``(D,)``."""
        return self._tensor(FINAL_NORM)

    @cached_property
    def head(self) -> Tensor:
        """``(V, D)``; the embedding itself when tied."""
        return self.embedding if self.config.tie_word_embeddings else self._tensor(HEAD)

    def layer(self, index: int) -> LayerTensors:
        """The tensors of one layer, read now.

        Raises:
            CheckpointError: A tensor that cannot be read or is not finite.
        """
        prefix = layer_name(index, "")
        return {name.removeprefix(prefix): self._tensor(name) for name in self._names[index]}

    def _tensor(self, name: str) -> Tensor:
        # What is kept outlives the caller's mode, and nothing made in inference mode can be trained with.
        with torch.inference_mode(False):
            tensor = self._checkpoint.tensor(name)
            module = name.removesuffix(".weight")
            if self._replace is not None and module.endswith("_proj") and module != name:
                tensor = self._replace(module, tensor)
            return finite(tensor.to(self.device, self.dtype, copy=True), name)


class ResidentLayers:
    """Every layer in memory, read once.

    Args:
        source: Where they come from.
    """

    def __init__(self, source: LayerSource) -> None:
        self.config = source.config
        self.device = source.device
        self.dtype = source.dtype
        self.embedding = source.embedding
        self.final_norm = source.final_norm
        self.head = source.head
        self._layers = [source.layer(index) for index in range(source.config.layer_count)]

    def layer(self, index: int) -> LayerTensors:
        """The tensors of one layer."""
        return self._layers[index]


def model_bytes(checkpoint: Checkpoint, dtype: torch.dtype) -> int:
    """Memory of a whole model in a dtype."""
    return sum(map(prod, expected_shapes(checkpoint.config).values())) * dtype.itemsize


def streaming_notice(name: object, needed_bytes: int, left_bytes: int) -> str:
    """A sentence for people whose model is read from the disk over and over."""
    return (
        f"{name} takes {needed_bytes / 2**30:.2f} GiB and {max(0, left_bytes) / 2**30:.2f} GiB of memory are "
        "left for it: its layers are read from the disk whenever they are needed, which takes longer"
    )


def final_hidden(
    source: LayerSource, token_ids: Tensor, linear: Linear = plain_linear, rotary: Rotary | None = None
) -> Tensor:
    """Whole sequences through all layers and the final norm; logits are this times ``head`` transposed.

    Args:
        source: The model.
        token_ids: int64 ``(B, T)``, padded at the end.
        linear: Computes the projections.
        rotary: Tables of T positions, to build them once for many calls.

    Returns:
        ``(B, T, D)`` in the source's dtype.
    """
    tables = rotary or Rotary.build(source.config, token_ids.shape[1], source.device)
    hidden = source.embedding[token_ids.to(source.device)]
    for index in range(source.config.layer_count):
        hidden = layer_forward(source.config, index, source.layer(index), hidden, tables, linear)
    return rms_norm(hidden, source.final_norm, source.config.rms_norm_eps)
