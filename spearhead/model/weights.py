"""The tensors of a model as the decoder uses them: fused projections, one dtype, one device."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from kernels.compensator import GpuCompensator
from kernels.linear import pack
from kernels.w4a16 import GpuWeight, PackedWeight


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """The small network that scales a compensator's code: 2 sigmoid(w2 silu(w1 z + b1) + b2).

    Attributes:
        w1: ``(h, R)``.
        b1: ``(h,)``.
        w2: ``(R, h)``.
        b2: ``(R,)``.
    """

    w1: Tensor
    b1: Tensor
    w2: Tensor
    b2: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedCompensator:
    """A low-rank correction of some rows of a fused projection: y[rows] += b (gate(a x) * a x).

    Attributes:
        row_offset: First output row that it corrects.
        row_count: N, how many rows.
        a: ``(R, K)``.
        b: ``(N, R)``.
        gate: ``None`` = static: the code is used as it is.
    """

    row_offset: int
    row_count: int
    a: Tensor
    b: Tensor
    gate: Gate | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AfterSum:
    """What a projection that is cut along its inputs adds once, when the parts of all ranks are summed.

    Attributes:
        bias: ``(N,)`` or ``None``.
        compensators: Their ``a`` is cut along the inputs as the weight is, all else is whole.
    """

    bias: Tensor | None = None
    compensators: tuple[PlacedCompensator, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearWeights:
    """One projection y = x weightᵀ + bias, plus its compensators.

    Attributes:
        weight: ``(N, K)`` for the compute dtype: dense, packed (``kernels.linear``), or in 4 bits.
        bias: ``(N,)`` or ``None``.
        compensators: Corrections, each of its own rows.
        gpu_compensator: The same corrections as the GPU kernels read them, in their place.
        after_sum: Set where the projection gives one rank's part of a sum; bias and corrections are there.
    """

    weight: Tensor | PackedWeight | GpuWeight
    bias: Tensor | None = None
    compensators: tuple[PlacedCompensator, ...] = ()
    gpu_compensator: GpuCompensator | None = None
    after_sum: AfterSum | None = None

    @property
    def rank(self) -> int:
        """Sum of the compensators' ranks, as they are computed."""
        if self.gpu_compensator is not None:
            return self.gpu_compensator.code_width
        return sum(placed.a.shape[0] for placed in self.compensators)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """One decoder layer.

    Attributes:
        input_norm: ``(D,)``, before attention.
        post_attention_norm: ``(D,)``, before the MLP.
        qkv: Rows are all query heads, then all key heads, then all value heads.
        output: The attention's output projection.
        gate_up: Rows are the MLP's gate, then its up projection.
        down: The MLP's down projection.
        q_norm: ``(head_dim,)`` or ``None``.
        k_norm: ``(head_dim,)`` or ``None``.
    """

    input_norm: Tensor
    post_attention_norm: Tensor
    qkv: LinearWeights
    output: LinearWeights
    gate_up: LinearWeights
    down: LinearWeights
    q_norm: Tensor | None = None
    k_norm: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelWeights:
    """One variant of a model. Variants share the storage of embedding, norms and head.

    Attributes:
        variant: ``fp16``, ``w4`` or ``w4+ec``.
        embedding: ``(V, D)``.
        layers: In order.
        final_norm: ``(D,)``.
        head: ``(V, D)``; shares the embedding's storage when tied.
        stored_bytes: Size of this variant's weights in a checkpoint.
        quantization: Such as ``w4 symmetric, group 32, absmax/7.5``; empty = full precision.
        compensator_digest: Digest of the compensators; empty = none.
    """

    variant: str
    embedding: Tensor
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor
    head: LinearWeights
    stored_bytes: int
    quantization: str = ""
    compensator_digest: str = ""

    @property
    def resident_bytes(self) -> int:
        """Bytes that this variant holds in memory; storage shared within it counts once."""
        return byte_count(self.tensors())

    def tensors(self) -> Iterator[Tensor]:
        """Every tensor of the variant; a shared one may come twice."""
        yield self.embedding
        yield self.final_norm
        yield from _linear_tensors(self.head)
        for layer in self.layers:
            yield layer.input_norm
            yield layer.post_attention_norm
            for linear in (layer.qkv, layer.output, layer.gate_up, layer.down):
                yield from _linear_tensors(linear)
            yield from (norm for norm in (layer.q_norm, layer.k_norm) if norm is not None)


def byte_count(tensors: Iterable[Tensor]) -> int:
    """Bytes in memory; storage that several tensors share counts once."""
    sizes: dict[int, int] = {}
    for tensor in tensors:
        if tensor.is_mkldnn:  # packed: opaque, never a view
            sizes[id(tensor)] = tensor.numel() * tensor.itemsize
        else:
            storage = tensor.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
    return sum(sizes.values())


def packed(variants: Mapping[str, ModelWeights]) -> dict[str, ModelWeights]:
    """The same variants with dense matrices laid out for ``kernels.linear``; what is shared stays shared."""
    done: dict[int, Tensor] = {}

    def pack_once(linear: LinearWeights) -> LinearWeights:
        if not isinstance(linear.weight, Tensor):
            return linear
        key = linear.weight.data_ptr()
        if key not in done:
            done[key] = pack(linear.weight)
        return replace(linear, weight=done[key])

    return {
        name: replace(
            weights,
            head=pack_once(weights.head),
            layers=tuple(
                replace(
                    layer,
                    qkv=pack_once(layer.qkv),
                    output=pack_once(layer.output),
                    gate_up=pack_once(layer.gate_up),
                    down=pack_once(layer.down),
                )
                for layer in weights.layers
            ),
        )
        for name, weights in variants.items()
    }


def _linear_tensors(linear: LinearWeights) -> Iterator[Tensor]:
    if isinstance(linear.weight, PackedWeight):
        yield linear.weight.codes
        yield linear.weight.scales_and_zeros
    elif isinstance(linear.weight, GpuWeight):
        yield linear.weight.words
        yield linear.weight.scales
        yield from () if linear.weight.bias is None else (linear.weight.bias,)
    else:
        yield linear.weight
    if linear.bias is not None:
        yield linear.bias
    if linear.gpu_compensator is not None:
        yield from _gpu_tensors(linear.gpu_compensator)
    yield from _compensator_tensors(linear.compensators)
    if linear.after_sum is not None:
        yield from () if linear.after_sum.bias is None else (linear.after_sum.bias,)
        yield from _compensator_tensors(linear.after_sum.compensators)


def _compensator_tensors(compensators: Iterable[PlacedCompensator]) -> Iterator[Tensor]:
    for compensator in compensators:
        yield compensator.a
        yield compensator.b
        if compensator.gate is not None:
            gate = compensator.gate
            yield from (gate.w1, gate.b1, gate.w2, gate.b2)


def _gpu_tensors(compensator: GpuCompensator) -> Iterator[Tensor]:
    yield from (compensator.a, compensator.b, compensator.bounds)
    if compensator.gate is not None:
        gate = compensator.gate
        yield from (gate.w1, gate.b1, gate.w2, gate.b2, gate.gated)
