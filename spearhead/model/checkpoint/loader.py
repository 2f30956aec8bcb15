"""Reading tensors into the decoder's form: checked, converted, fused."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kernels.w4a16 import GpuWeight, PackedWeight
from spearhead.errors import CheckpointError
from spearhead.model.architecture import ModelConfig
from spearhead.model.checkpoint.compensators import CompensatorSet
from spearhead.model.checkpoint.four_bits import pack_for
from spearhead.model.checkpoint.layout import EMBEDDING, FINAL_NORM, HEAD, has_bias, layer_name, projections
from spearhead.model.checkpoint.sharding import cut_codes, cut_compensator, cut_tensor
from spearhead.model.checkpoint.source import Checkpoint
from spearhead.model.parallel import Cut
from spearhead.model.quantization import QuantizedWeight
from spearhead.model.weights import AfterSum, LayerWeights, LinearWeights, PlacedCompensator

Source = Callable[[str], Tensor]
"""Gives a tensor by its Hugging Face name."""

QuantizedSource = Callable[[str], QuantizedWeight | None]
"""Gives a module's codes by the module's name; ``None`` = it has none."""

Fused = dict[str, Tensor]
"""One tensor for each fused projection that has one: ``qkv``, ``output``, ``gate_up``, ``down``."""

Matrices = Mapping[str, Tensor | PackedWeight | GpuWeight]
"""The weight of each fused projection, dense or in 4 bits."""

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
    """What variants of one checkpoint hold in common.

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
        cuts: This rank's part of each linear module, by its name within a layer; empty = all of it.
    """

    base: Checkpoint
    dtype: torch.dtype
    device: torch.device
    cuts: Mapping[str, Cut] = field(default_factory=dict)

    def shared(self) -> SharedTensors:
        """Embedding, norms, biases and head.

        Raises:
            CheckpointError: A tensor that cannot be read or is not finite.
        """
        embedding = self._get(self.base.tensor, EMBEDDING)
        tied = self.base.config.tie_word_embeddings
        return self._shared(embedding, embedding if tied else self._get(self.base.tensor, HEAD))

    def shared_beside(self, held: SharedTensors, source: Checkpoint) -> SharedTensors:
        """The same, where those of the full-precision source are held already.

        Embedding and head, which are large, are the source's unless they are other ones. Norms and biases
        never are: quantisers fold scales into them that the source's do not have.

        Args:
            held: The source's.
            source: What this checkpoint was made from, in the same shapes.

        Raises:
            CheckpointError: A tensor that cannot be read or is not finite.
        """

        def one(name: str, of_source: Tensor) -> Tensor:
            tensor = self.base.tensor(name)
            same = torch.equal(source.tensor(name).to(tensor.dtype), tensor)
            return of_source if same else self._get(self.base.tensor, name)

        embedding = one(EMBEDDING, held.embedding)
        tied = self.base.config.tie_word_embeddings
        return self._shared(embedding, embedding if tied else one(HEAD, held.head))

    def _shared(self, embedding: Tensor, head: Tensor) -> SharedTensors:
        layers = range(self.base.config.layer_count)
        return SharedTensors(
            embedding=embedding,
            final_norm=self._get(self.base.tensor, FINAL_NORM),
            head=head,
            norms=[self._norms(layer) for layer in layers],
            biases=[self._biases(layer) for layer in layers],
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

    def quantized_linears(self, source: Source, quantized: QuantizedSource) -> list[Matrices]:
        """The fused weights of every layer, in 4 bits where the operator for that can hold them.

        Args:
            source: Dequantised weights, for the others.
            quantized: Codes.

        Raises:
            CheckpointError: A tensor that cannot be read or is not finite.
        """
        return [
            {
                field: self._fuse_codes(quantized, layer, parts) or self._fuse(source, layer, parts, "weight")
                for field, parts in _FUSED.items()
            }
            for layer in range(self.base.config.layer_count)
        ]

    def _fuse_codes(
        self, quantized: QuantizedSource, layer: int, parts: Sequence[str]
    ) -> PackedWeight | GpuWeight | None:
        names = [layer_name(layer, part) for part in parts]
        weights = [
            self._part_of(weight, part, name)
            for part, name in zip(parts, names, strict=True)
            if (weight := quantized(name)) is not None and _plain(weight)
        ]
        if len(weights) < len(names):
            return None
        codes = torch.cat([weight.codes for weight in weights])
        groups = max(weight.scales.shape[1] for weight in weights)
        if any(groups % weight.scales.shape[1] for weight in weights):
            return None
        scales = torch.cat([w.scales.repeat_interleave(groups // w.scales.shape[1], dim=1) for w in weights])
        packed = pack_for(self.device, self.dtype, codes, scales)
        if packed is not None:
            kept = packed.scales if isinstance(packed, GpuWeight) else packed.scales_and_zeros
            finite(kept, f"{names[0]}.weight_scale")
        return packed

    def _part_of(self, weight: QuantizedWeight, part: str, name: str) -> QuantizedWeight:
        cut = self.cuts.get(part)
        return weight if cut is None else cut_codes(weight, cut, name)

    def _get(self, source: Source, name: str, cut: Cut | None = None) -> Tensor:
        tensor = source(name) if cut is None else cut_tensor(source(name), cut)
        # A copy, so that no tensor keeps a mapped file, or the parts of other ranks, alive.
        return finite(tensor.to(self.device, self.dtype, copy=True), name)

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
        def one(part: str) -> Tensor:
            cut = self.cuts.get(part)
            whole = cut is not None and kind == "bias" and cut.axis == 1  # added once, to the sum
            return self._get(source, layer_name(layer, f"{part}.{kind}"), None if whole else cut)

        return torch.cat([one(part) for part in parts])


def _plain(weight: QuantizedWeight) -> bool:
    """Whether weights are 4-bit codes times scales, and nothing more."""
    return weight.bits == 4 and weight.symmetric and weight.group_index is None


def assemble_layers(
    config: ModelConfig,
    shared: SharedTensors,
    matrices: Sequence[Matrices],
    compensators: CompensatorSet | None,
    cuts: Mapping[str, Cut],
) -> tuple[LayerWeights, ...]:
    """Joins fused weights with what is shared and with compensators.

    Args:
        config: Shape of what the matrices are: the model, or one rank's part of it.
        shared: Biases among them.
        matrices: One mapping a layer.
        compensators: Of the whole model.
        cuts: As the matrices were cut.
    """

    def linear(layer: int, field: str) -> LinearWeights:
        matrix, bias = matrices[layer][field], shared.biases[layer].get(field)
        placed = _placed(compensators, config, layer, field, shared.embedding.device, cuts)
        if any(part in cuts and cuts[part].axis == 1 for part in _FUSED[field]):
            return LinearWeights(weight=matrix, after_sum=AfterSum(bias=bias, compensators=placed))
        return LinearWeights(weight=matrix, bias=bias, compensators=placed)

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
    compensators: CompensatorSet | None,
    config: ModelConfig,
    layer: int,
    field: str,
    device: torch.device,
    cuts: Mapping[str, Cut],
) -> tuple[PlacedCompensator, ...]:
    """The compensators of a fused projection, each at the rows of its own module."""
    if compensators is None:
        return ()
    placed, offset = [], 0
    for part in _FUSED[field]:
        rows, _ = projections(config)[part]
        found = compensators.by_module.get(layer_name(layer, part))
        if found is not None:
            if part in cuts:
                found = cut_compensator(found, cuts[part])
            placed.append(found.placed(row_offset=offset, device=device))
        offset += rows
    return tuple(placed)
