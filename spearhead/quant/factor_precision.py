"""Compensator factors as they will be stored: rounding inside the training step, straight through backwards.

An int8 factor takes half the bytes of a bfloat16 one, so twice the rank fits into the same budget; training
sees the rounding and works around it.
"""

from typing import Literal

import torch
from torch import Tensor

FactorBits = Literal[16, 8, 4]
FACTOR_BITS: tuple[FactorBits, ...] = (16, 8, 4)


def code_limit(bits: FactorBits) -> int:
    """The largest code of a stored factor; codes are symmetric."""
    return (1 << (bits - 1)) - 1


def component_scales(factor: Tensor, bits: FactorBits) -> Tensor:
    """One scale a component: a row of A, or a row of B transposed; bfloat16-representable, ``(R, 1)``."""
    peak = factor.detach().abs().amax(dim=1, keepdim=True)
    scales = (peak / code_limit(bits)).to(torch.bfloat16).float()
    return torch.where(scales > 0, scales, torch.ones_like(scales))


def round_factor(factor: Tensor, bits: FactorBits) -> Tensor:
    """What a factor is once stored; gradients pass as if it were not rounded.

    Args:
        factor: float32 ``(R, width)``: A, or B transposed.
        bits: 16 (bfloat16), 8 or 4.

    Returns:
        float32 ``(R, width)``.
    """
    with torch.no_grad():
        if bits == 16:
            stored = factor.to(torch.bfloat16).float()
        else:
            scales, limit = component_scales(factor, bits), code_limit(bits)
            stored = torch.round(factor / scales).clamp(-limit, limit) * scales
    return factor + (stored - factor).detach()
