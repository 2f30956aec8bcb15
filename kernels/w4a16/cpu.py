"""Weights that stay in 4 bits on the processor: y = x weightᵀ by torch's own 4-bit product.

Wins where reading weights is what a step costs, which is up to about eight rows; with more rows it loses,
since it multiplies in float32 while the dense kernels multiply in bfloat16 (measured in
docs/decisions/0008). The operator is the one that torch's own quantisers use; it accumulates
in float32, rounds once, and a row's result does not depend on the others.
"""

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.w4a16.reference import CODE_MIN, dequantize

_GROUP_SIZES = (256, 128, 64, 32)
_OUTPUTS = 16  # N is a multiple of it


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedWeight:
    """An ``(N, K)`` weight in 4 bits, for :func:`multiply`.

    Attributes:
        codes: uint8 ``(N, K / 2)``, in an order that only the operator knows.
        scales_and_zeros: ``(K / G, N, 2)`` in the compute type; the zeros are zero.
        group_size: G.
    """

    codes: Tensor
    scales_and_zeros: Tensor
    group_size: int

    @property
    def shape(self) -> torch.Size:
        """``(N, K)``."""
        return torch.Size((self.codes.shape[0], self.codes.shape[1] * 2))

    @property
    def dtype(self) -> torch.dtype:
        """The compute type."""
        return self.scales_and_zeros.dtype


def fitting_group_size(out_features: int, in_features: int, group_count: int) -> int | None:
    """The largest group size of the operator that divides the weight's own groups.

    Args:
        out_features: N.
        in_features: K.
        group_count: Scales a row; 1 = per channel.

    Returns:
        ``None`` = the operator cannot hold such a weight.
    """
    if out_features % _OUTPUTS or in_features % group_count:
        return None
    own = in_features // group_count
    return next((size for size in _GROUP_SIZES if own % size == 0), None)


@functools.cache
def packs(dtype: torch.dtype) -> bool:
    """Whether 4-bit weights can be multiplied in this type here; tried once on a small matrix."""
    if dtype not in (torch.bfloat16, torch.float16, torch.float32):
        return False
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(-8, 8, (32, 64), dtype=torch.int8, generator=generator)
    scales = torch.rand(32, 2, generator=generator).to(dtype)
    x = torch.randn(2, 64, generator=generator).to(dtype)
    expected = x.float() @ dequantize(codes, scales).T
    try:
        result = multiply(x, pack_codes(codes, scales, dtype))
        return torch.allclose(result.float(), expected, rtol=0.02, atol=0.02)
    except (AttributeError, RuntimeError):  # a torch without the operators, or a processor without them
        return False


def pack_codes(codes: Tensor, scales: Tensor, dtype: torch.dtype) -> PackedWeight:
    """Lays codes out for :func:`multiply`.

    Args:
        codes: int8 ``(N, K)``, each in ``[-8, 7]``.
        scales: Any float ``(N, K / G)``; rounded to ``dtype``.
        dtype: Compute type, for which :func:`packs` holds.

    Raises:
        ValueError: :func:`fitting_group_size` has no answer for this shape.
    """
    rows, columns = codes.shape
    group_size = fitting_group_size(rows, columns, scales.shape[1])
    if group_size is None:
        raise ValueError(
            f"a {rows} x {columns} weight with {scales.shape[1]} scales a row cannot be packed; rows must be "
            f"a multiple of {_OUTPUTS}, groups of {_GROUP_SIZES[-1]}"
        )
    unsigned = (codes.to(torch.int32) - CODE_MIN).contiguous()
    packed: Tensor = torch.ops.aten._convert_weight_to_int4pack_for_cpu(unsigned, 1)
    repeated = scales.to(dtype).repeat_interleave(columns // group_size // scales.shape[1], dim=1)
    pairs = torch.stack((repeated.T, torch.zeros_like(repeated.T)), dim=-1)
    return PackedWeight(codes=packed, scales_and_zeros=pairs.contiguous(), group_size=group_size)


def multiply(x: Tensor, weight: PackedWeight) -> Tensor:
    """``x weightᵀ`` in the dtype of ``x``.

    Args:
        x: ``(M, K)``, contiguous, of the weight's compute type.
        weight: ``(N, K)``.

    Returns:
        ``(M, N)``.
    """
    y: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(
        x, weight.codes, weight.group_size, weight.scales_and_zeros
    )
    return y
