"""How much sequences repeat themselves, in 8-grams."""

import numpy as np
from torch import Tensor

N = 8


def repeated_shares(token_ids: Tensor) -> list[float]:
    """Share of each sequence's 8-grams that occurred before in it.

    Args:
        token_ids: Integers ``(S, T)``.

    Returns:
        S numbers from 0 to 1; all 0 where T < 8.
    """
    total = token_ids.shape[1] - N + 1
    if total < 1:
        return [0.0] * len(token_ids)
    return [1.0 - len(grams) / total for grams in _grams(token_ids)]


def _grams(token_ids: Tensor) -> list[set[bytes]]:
    rows = token_ids.cpu().numpy().astype(np.int32)
    width = N * rows.itemsize
    return [
        {data[start : start + width] for start in range(0, len(data) - width + 1, rows.itemsize)}
        for data in (row.tobytes() for row in rows)
    ]
