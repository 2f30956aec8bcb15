"""How far quantised weights are from the true ones, as inputs see it."""

import torch
from torch import Tensor

_ROWS_AT_ONCE = 512


def squared_error(difference: Tensor, second: Tensor | None) -> float:
    """``‖D R½‖²``: the mean squared output of weights D over inputs with second moments R.

    Args:
        difference: D, float32 ``(N, K)``.
        second: R, ``(K, K)``; ``None`` = the identity.

    Returns:
        Not below 0.
    """
    wide = None if second is None else second.to(difference)
    total = 0.0
    for rows in torch.split(difference, _ROWS_AT_ONCE):  # bounds the temporaries
        outputs = rows if wide is None else rows @ wide
        total += float((outputs.double() * rows.double()).sum())
    return max(0.0, total)


def relative_error(weight: Tensor, quantized: Tensor, second: Tensor | None) -> float:
    """Root of the squared error over the squared output of the true weights; 0 where both are 0.

    Args:
        weight: Float32 ``(N, K)``.
        quantized: Float32 ``(N, K)``.
        second: R, ``(K, K)``; ``None`` = plain Frobenius norms.
    """
    error = squared_error(weight - quantized, second)
    whole = squared_error(weight, second)
    return float((error / whole) ** 0.5) if whole else 0.0
