"""Dense products on a GPU whose rows do not depend on how many there are.

A dense library picks a kernel, and with it an order of additions, by the row count. Here every call of it has
exactly :data:`BLOCK_ROWS` rows, the last one filled up, so the kernel is always the same one. Reading the
weights is what up to about that many rows cost, so filling up is nearly free; a long prompt reads the weights
once a block.
"""

import torch
from torch import Tensor

BLOCK_ROWS = 128


def multiply_blocks(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x weightᵀ + bias`` in the type of ``x``, in blocks of equal size.

    Args:
        x: Any float ``(M, K)``; M may be 0.
        weight: ``(N, K)`` of the same type.
        bias: ``(N,)`` of the same type, or ``None``.

    Returns:
        ``(M, N)``.
    """
    rows = x.shape[0]
    missing = -rows % BLOCK_ROWS
    if missing:
        x = torch.nn.functional.pad(x, (0, 0, 0, missing))
    y = x.new_empty(rows + missing, weight.shape[0])
    for first in range(0, rows, BLOCK_ROWS):
        block = slice(first, first + BLOCK_ROWS)
        if bias is None:
            torch.mm(x[block], weight.T, out=y[block])
        else:
            torch.addmm(bias, x[block], weight.T, out=y[block])
    return y[:rows]
