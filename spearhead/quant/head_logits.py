"""Logits in float32, whatever the dtype of the model."""

import torch
from torch import Tensor


def head_logits(hidden: Tensor, head: Tensor) -> Tensor:
    """The head's product, never rounded to 8 bits: that would distort laws and drown small divergences.

    Args:
        hidden: ``(rows, D)``, after the final norm.
        head: ``(V, D)``, of the same dtype.

    Returns:
        float32 ``(rows, V)``.
    """
    if hidden.is_cuda and hidden.dtype != torch.float32:
        return torch.mm(hidden, head.T, out_dtype=torch.float32)
    return hidden.float() @ head.float().T
