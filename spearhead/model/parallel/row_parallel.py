"""The end of a product that is cut along its inputs: one exchange, then everything that is added once.

Each rank has a part of ``x weightᵀ`` and a part of every compensator's code ``A x``. A gate is not linear, so
codes are summed before it; bias and corrections belong to the sum, not to its parts, or each rank would add
them again.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.compensator import gate_of
from spearhead.model.parallel.ranks import Ranks, ordered_sum
from spearhead.model.weights import AfterSum, PlacedCompensator

Rows = Callable[[Tensor], Tensor]


def complete(
    ranks: Ranks, partial: Tensor, x: Tensor, after: AfterSum, *, block_rows: int | None = None
) -> Tensor:
    """The whole product from the parts of all ranks.

    Args:
        ranks: Every one of them calls this.
        partial: ``(M, N)``, this rank's part of the product.
        x: ``(M, K of this rank)``, its input.
        after: What is added to the sum.
        block_rows: Row count at which codes and corrections are computed, so that a row's bits do not depend
            on M; ``None`` = M is such a count already.

    Returns:
        ``(M, N)`` in the type of ``partial``, the same bits on every rank.
    """
    codes = [_code(x, placed, block_rows) for placed in after.compensators]
    width = partial.shape[1]
    # One message: codes travel in float32 whatever the type of the product.
    message = torch.cat([partial, *(code.view(partial.dtype) for code in codes)], dim=1)
    parts = ranks.gather(message)
    total = ordered_sum([part[:, :width] for part in parts])
    if after.bias is not None:
        total += after.bias
    if codes:
        code = ordered_sum([part[:, width:].contiguous().view(torch.float32) for part in parts])
        _correct(total, code, after, block_rows)
    return total.to(partial.dtype)


def _code(x: Tensor, placed: PlacedCompensator, block_rows: int | None) -> Tensor:
    return _in_blocks(lambda rows: rows.float() @ placed.a.float().T, x, block_rows)


def _correct(total: Tensor, code: Tensor, after: AfterSum, block_rows: int | None) -> None:
    first = 0
    for placed in after.compensators:
        rank = placed.a.shape[0]
        own = code[:, first : first + rank].contiguous()
        rows = slice(placed.row_offset, placed.row_offset + placed.row_count)
        total[:, rows] += _in_blocks(_correction(placed), own, block_rows)
        first += rank


def _correction(placed: PlacedCompensator) -> Rows:
    gate = placed.gate

    def correct(code: Tensor) -> Tensor:
        if gate is not None:
            code = code * gate_of(code, (gate.w1, gate.b1, gate.w2, gate.b2))
        return code @ placed.b.float().T

    return correct


def _in_blocks(function: Rows, x: Tensor, block_rows: int | None) -> Tensor:
    if block_rows is None:
        return function(x)
    padded = F.pad(x, (0, 0, 0, -len(x) % block_rows))
    return torch.cat([function(block) for block in torch.split(padded, block_rows)])[: len(x)]
