"""Loaded weights in the form of the GPU kernels: compensators fused, biases inside of 4-bit weights."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from kernels.compensator import Factors, GpuCompensator, pack_compensators
from kernels.w4a16 import GpuWeight, with_bias
from spearhead.model.weights import LayerWeights, LinearWeights, ModelWeights, PlacedCompensator


def prepared(variants: Mapping[str, ModelWeights], dtype: torch.dtype) -> dict[str, ModelWeights]:
    """The same variants for :class:`spearhead.model.gpu.decoder.GpuDecoder`; what is shared stays shared.

    Args:
        variants: As loaded.
        dtype: Compute type, to which factors are rounded; gates stay float32.
    """
    return {
        name: replace(weights, layers=tuple(_layer(layer, dtype) for layer in weights.layers))
        for name, weights in variants.items()
    }


def _layer(layer: LayerWeights, dtype: torch.dtype) -> LayerWeights:
    return replace(
        layer,
        qkv=_linear(layer.qkv, dtype),
        output=_linear(layer.output, dtype),
        gate_up=_linear(layer.gate_up, dtype),
        down=_linear(layer.down, dtype),
    )


def _linear(linear: LinearWeights, dtype: torch.dtype) -> LinearWeights:
    weight, bias = linear.weight, linear.bias
    if isinstance(weight, GpuWeight) and bias is not None:
        weight, bias = with_bias(weight, bias), None
    fused = fuse_compensators(linear.compensators, weight.shape[0], dtype)
    return replace(linear, weight=weight, bias=bias, compensators=(), gpu_compensator=fused)


def fuse_compensators(
    placed: Sequence[PlacedCompensator], out_features: int, dtype: torch.dtype
) -> GpuCompensator | None:
    """Compensators of a fused projection as one; rows between them are projections of rank 0.

    Args:
        placed: Of distinct rows, rising.
        out_features: N of the fused projection.
        dtype: Compute type.

    Returns:
        ``None`` = there is none.
    """
    if not placed:
        return None
    inputs, like = placed[0].a.shape[1], placed[0].a
    factors: list[Factors] = []
    end = 0
    for one in placed:
        factors += _uncorrected(one.row_offset - end, inputs, like)
        gate = one.gate
        factors.append(
            Factors(a=one.a, b=one.b, gate=None if gate is None else (gate.w1, gate.b1, gate.w2, gate.b2))
        )
        end = one.row_offset + one.row_count
    factors += _uncorrected(out_features - end, inputs, like)
    return pack_compensators(factors, dtype)


def _uncorrected(rows: int, inputs: int, like: Tensor) -> list[Factors]:
    return [Factors(a=like.new_zeros(0, inputs), b=like.new_zeros(rows, 0))] if rows else []
