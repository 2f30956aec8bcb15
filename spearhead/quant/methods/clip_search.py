"""Scales by search: how far the largest weights may be clipped for the others to be rounded finer.

For each row or group, the clip factor p in {1.00, 0.98, …, 0.50} that minimises ``Σ_k m_k (w_k - ŵ_k(p))²``,
where m is the mean square of each input, or 1. The weights of inputs that never occur do not count.
"""

import torch
from torch import Tensor

from spearhead.quant.methods.grid import Grid

_FACTORS = tuple(step / 50 for step in range(50, 24, -1))


def clip_search(weight: Tensor, grid: Grid, mean_square: Tensor | None, scale_dtype: torch.dtype) -> Tensor:
    """The best scales.

    Args:
        weight: Float32 ``(N, K)``, finite.
        grid: What shares a scale.
        mean_square: E[x²] of the inputs, ``(K,)``; ``None`` = all equal.
        scale_dtype: How scales are stored.

    Returns:
        ``(N, G)``. Of equal errors the one that clips least wins, so p = 1 stays where nothing is known.
    """
    importance = torch.ones(1, device=weight.device) if mean_square is None else mean_square.to(weight)
    largest = grid.largest(weight)
    best = grid.scales(largest, scale_dtype)
    least = _errors(weight, grid, importance, best)
    for factor in _FACTORS[1:]:
        scales = grid.scales(largest * factor, scale_dtype)
        errors = _errors(weight, grid, importance, scales)
        better = errors < least
        best, least = torch.where(better, scales, best), torch.where(better, errors, least)
    return best.contiguous()


def _errors(weight: Tensor, grid: Grid, importance: Tensor, scales: Tensor) -> Tensor:
    squared = (grid.rounded(weight, scales) - weight).square_() * importance
    return grid.shared(grid.grouped(squared).sum(dim=2), torch.sum)  # (N, G)
