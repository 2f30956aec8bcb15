"""Compensator factors as they will be stored: rounding inside the training step, straight through backwards.

An int8 factor takes half the bytes of a bfloat16 one, so twice the rank fits into the same budget; training
sees the rounding and works around it.
"""

import torch
from torch import Tensor

from spearhead.model.checkpoint.factor_codec import FactorBits, factor_codes

FACTOR_BITS: tuple[FactorBits, ...] = (16, 8, 4)


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
            codes, scales = factor_codes(factor, bits)
            stored = codes * scales[:, None]
        difference = stored - factor
    return factor + difference
