"""Reading tensors into the decoder's form: checked, converted, fused."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spearhead.errors import CheckpointError
from spearhead.model.architecture import ModelConfig
from spearhead.model.checkpoint.compensators import CompensatorSet
from spearhead.model.checkpoint.layout import EMBEDDING, FINAL_NORM, HEAD, has_bias, layer_name, projections
from spearhead.model.checkpoint.source import Checkpoint
from spearhead.model.weights import LayerWeights, LinearWeights, PlacedCompensator

Source = Callable[[str], Tensor]
"""Gives a tensor by its Hugging Face name."""

Fused = dict[str, Tensor]
"""One tensor for each fused projection that has one: ``qkv``, ``output``, ``gate_up``, ``down``."""

_FUSED = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "output": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}


def finite(tensor: Tensor, name: str) -> Tensor:
    """The tensor itself.

    Raises:
        CheckpointError: It holds NaN or infinity.
    """
    if not bool(torch.isfinite(torch.stack(tensor.aminmax())).all()):
        raise CheckpointError(
            f"tensor {name} holds NaN or infinity as {str(tensor.dtype).removeprefix('torch.')}; the "
            "checkpoint is damaged, or needs a type of wider range"
        )
    return tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedTensors:
    """What all variants of a model hold in common.

    Attributes:
        embedding: ``(V, D)``.
        final_norm: ``(D,)``.
        head: ``(V, D)``; the embedding itself when tied.
        norms: For each layer, field of :class:`LayerWeights` to norm.
        biases: For each layer, the fused biases.
    """

    embedding: Tensor
    final_norm: Tensor
    head: Tensor
    norms: list[dict[str, Tensor]]
    biases: list[Fused]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorLoader:
    """Reads from one checkpoint, or from another source of the same model.

    Attributes:
        base: Gives the shared tensors.
        dtype: What tensors are converted to.
        device: Where they go.
    """

    base: Checkpoint
    dtype: torch.dtype
    device: torch.device

    def shared(self) -> SharedTensors:
        """Embedding, norms, biases and head.

        Raises:
            CheckpointError: A tensor that cannot be read or is not finite.
        """
        config = self.base.config
        embedding = self._get(self.base.tensor, EMBEDDING)
        return SharedTensors(
            embedding=embedding,
            final_norm=self._get(self.base.tensor, FINAL_NORM),
            head=embedding if config.tie_word_embeddings else self._get(self.base.tensor, HEAD),
            norms=[self._norms(layer) for layer in range(config.layer_count)],
            biases=[self._biases(layer) for layer in range(config.layer_count)],
        )

    def linears(self, source: Source) -> list[Fused]:
        """The fused weights of every layer.

        Raises:
            CheckpointError: A tensor that cannot be read or is not finite.
        """
        return [
            {field: self._fuse(source, layer, parts, "weight") for field, parts in _FUSED.items()}
            for layer in range(self.base.config.layer_count)
        ]

    def _get(self, source: Source, name: str) -> Tensor:
        # A copy, so that no tensor keeps a mapped file alive.
        return finite(source(name).to(self.device, self.dtype, copy=True), name)

    def _norms(self, layer: int) -> dict[str, Tensor]:
        names = {"input_norm": "input_layernorm", "post_attention_norm": "post_attention_layernorm"}
        if self.base.config.qk_norm:
            names |= {"q_norm": "self_attn.q_norm", "k_norm": "self_attn.k_norm"}
        return {
            field: self._get(self.base.tensor, layer_name(layer, f"{part}.weight"))
            for field, part in names.items()
        }

    def _biases(self, layer: int) -> Fused:
        return {
            field: self._fuse(self.base.tensor, layer, parts, "bias")
            for field, parts in _FUSED.items()
            if has_bias(self.base.config, parts[0])
        }

    def _fuse(self, source: Source, layer: int, parts: Sequence[str], kind: str) -> Tensor:
        return torch.cat([self._get(source, layer_name(layer, f"{part}.{kind}")) for part in parts])


def assemble_layers(
    config: ModelConfig,
    shared: SharedTensors,
    dense: list[Fused],
    compensators: CompensatorSet | None,
) -> tuple[LayerWeights, ...]:
    """Joins fused weights with what is shared and with compensators."""

    def linear(layer: int, field: str) -> LinearWeights:
        weight = dense[layer][field]
        return LinearWeights(
            weight=weight,
            bias=shared.biases[layer].get(field),
            compensators=_placed(compensators, config, layer, field, weight.device),
        )

    return tuple(
        LayerWeights(
            qkv=linear(layer, "qkv"),
            output=linear(layer, "output"),
            gate_up=linear(layer, "gate_up"),
            down=linear(layer, "down"),
            input_norm=shared.norms[layer]["input_norm"],
            post_attention_norm=shared.norms[layer]["post_attention_norm"],
            q_norm=shared.norms[layer].get("q_norm"),
            k_norm=shared.norms[layer].get("k_norm"),
        )
        for layer in range(config.layer_count)
    )


def _placed(
    compensators: CompensatorSet | None, config: ModelConfig, layer: int, field: str, device: torch.device
) -> tuple[PlacedCompensator, ...]:
    """The compensators of a fused projection, each at the rows of its own module."""
    if compensators is None:
        return ()
    placed, offset = [], 0
    for part in _FUSED[field]:
        rows, _ = projections(config)[part]
        found = compensators.by_module.get(layer_name(layer, part))
        if found is not None:
            placed.append(found.placed(row_offset=offset, device=device))
        offset += rows
    return tuple(placed)
