"""The law of a dense linear layer, in float32."""

import torch
from torch import Tensor


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x weightᵀ + bias`` in float32.

    Args:
        x: Any float ``(M, K)``.
        weight: ``(N, K)``.
        bias: ``(N,)`` or ``None``.

    Returns:
        float32 ``(M, N)``.
    """
    y = torch.einsum("mk,nk->mn", x.float(), weight.float())
    return y if bias is None else y + bias.float()
