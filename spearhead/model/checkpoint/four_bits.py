"""Holding 4-bit weights as codes: in which form, if any, on which device."""

import torch
from torch import Tensor

from kernels.w4a16 import (
    GpuWeight,
    PackedWeight,
    fitting_group_size,
    kernel_group_size,
    pack_codes,
    pack_gpu,
    packs,
)

LIMITS = {
    "cpu": "only symmetric 4-bit codes with consecutive groups of a multiple of 32 inputs, and a multiple of "
    "16 outputs, can be multiplied as they are",
    "cuda": "only symmetric 4-bit codes with consecutive groups of a multiple of 32 inputs can be multiplied "
    "as they are",
}
"""What the products of a kind of device can hold, for people."""


def multiplies(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether there is a 4-bit product in this compute type."""
    if device.type == "cuda":
        return dtype in (torch.float16, torch.bfloat16)
    return packs(dtype)


def pack_for(
    device: torch.device, dtype: torch.dtype, codes: Tensor, scales: Tensor
) -> PackedWeight | GpuWeight | None:
    """Lays codes out for the products of a device.

    Args:
        device: Where they go.
        dtype: Compute type for which :func:`multiplies` holds. Scales keep their own type on a GPU.
        codes: int8 ``(N, K)``.
        scales: Any float ``(N, groups)``.

    Returns:
        ``None`` = the products cannot hold such a weight.
    """
    rows, columns = codes.shape
    if device.type != "cuda":
        fits = fitting_group_size(rows, columns, scales.shape[1]) is not None
        return pack_codes(codes, scales, dtype) if fits else None
    try:
        kernel_group_size(columns, scales.shape[1])
    except ValueError:
        return None
    return pack_gpu(codes.to(device), scales.to(device))
