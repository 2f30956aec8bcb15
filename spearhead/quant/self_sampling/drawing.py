"""Draws token ids from logits by inverting the distribution function, one uniform number a row.

A single double-precision number decides, so even a token of probability 1e-12 keeps its chance, and the
randomness depends on neither the vocabulary's size nor how rows are chunked.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from spearhead.quant.head_logits import head_logits

_BLOCK = 256
_CHUNK_ELEMENTS = 2**26  # 256 MiB of float32 logits


def draw_tokens(hidden: Tensor, head: Tensor, temperature: Tensor, uniform: Tensor) -> Tensor:
    """One token id a row, from the softmax of its logits over temperature. Never waits for the device.

    Args:
        hidden: ``(rows, D)``, after the final norm.
        head: ``(V, D)``; only these V ids can be drawn.
        temperature: float32 ``(rows,)``, positive.
        uniform: float64 ``(rows,)`` in [0, 1).

    Returns:
        int64 ``(rows,)``.
    """
    step = max(1, _CHUNK_ELEMENTS // head.shape[0])
    parts = zip(*(torch.split(x, step) for x in (hidden, temperature, uniform)), strict=True)
    return torch.cat([invert(head_logits(h, head) / t[:, None], u) for h, t, u in parts])


def invert(logits: Tensor, uniform: Tensor) -> Tensor:
    """The id at which the distribution function first exceeds ``uniform``.

    Args:
        logits: float32 ``(rows, V)``.
        uniform: float64 ``(rows,)`` in [0, 1).

    Returns:
        int64 ``(rows,)``.
    """
    weights = (logits - logits.amax(-1, keepdim=True)).exp()
    blocks = F.pad(weights, (0, -weights.shape[1] % _BLOCK)).view(len(weights), -1, _BLOCK)
    sums = blocks.sum(-1, dtype=torch.float64).cumsum(-1)  # (rows, blocks)
    target = uniform * sums[:, -1]
    # argmax takes the first of equals: where no sum exceeds the target, by rounding, it takes id 0.
    block = (sums > target[:, None]).int().argmax(-1)
    rows = torch.arange(len(weights), device=weights.device)
    below = F.pad(sums, (1, 0))[rows, block]
    within = blocks[rows, block].double().cumsum(-1)  # (rows, _BLOCK)
    return block * _BLOCK + (within > (target - below)[:, None]).int().argmax(-1)
