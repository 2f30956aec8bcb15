"""The law of attention over paged keys and values, in float32, sequence by sequence and row by row."""

import torch
from torch import Tensor

from kernels.paged_attention.batch import PagedBatch


def paged_attention(
    query: Tensor, cache: Tensor, batch: PagedBatch, scale: float, window: int | None = None
) -> Tensor:
    """``softmax(scale q kᵀ) v`` over the keys that each row may see.

    The row at position p sees keys 0 … p, with a window only the last ``window`` of them, itself included.

    Args:
        query: Any float ``(N, H, D)``.
        cache: ``(slots, 2, KV, D)``, keys and values of one layer, those of the new tokens included.
        batch: Rows and pages.
        scale: Of the scores.
        window: Sliding window; ``None`` = all.

    Returns:
        float32 ``(N, H D)``; zeros for rows of no sequence.
    """
    group = query.shape[1] // cache.shape[2]
    output = torch.zeros(query.shape, dtype=torch.float32, device=query.device)
    starts = batch.row_starts.tolist()
    for sequence, length in enumerate(batch.lengths.tolist()):
        first, last = starts[sequence], starts[sequence + 1]
        tokens = torch.arange(length, device=query.device)
        pages = batch.page_table[sequence].long()[tokens // batch.page_size]
        keys, values = cache[pages * batch.page_size + tokens % batch.page_size].float().unbind(1)
        for row in range(first, last):
            position = length - last + row
            seen = slice(0 if window is None else max(position + 1 - window, 0), position + 1)
            for head in range(query.shape[1]):
                scores = keys[seen, head // group] @ query[row, head].float() * scale
                output[row, head] = torch.softmax(scores, 0) @ values[seen, head // group]
    return output.flatten(1)
