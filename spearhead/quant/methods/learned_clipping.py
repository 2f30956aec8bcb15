"""Learned weight clipping: one clip factor a row or group, trained so that a block's output stays the same.

Source: Shao et al., "OmniQuant" (arXiv 2308.13137), the learnable weight clipping, symmetric. A factor is
sigmoid(θ); rounding passes gradients straight through; Adam minimises the mean squared error of the block.
Training starts from the factors of the clip search instead of from 0.98 everywhere: that is many steps ahead.
The learnable equivalent transformation of the same paper is not part of this.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from spearhead.quant.methods.clip_search import clip_search
from spearhead.quant.methods.grid import Grid

_MOST = 0.982
"""Largest factor that training starts from: beyond, the sigmoid is flat."""

BlockLoss = Callable[[Mapping[str, Tensor], int], Tensor]
"""Mean squared error of the block on one batch, from (name to weights, number of the batch)."""

Scales = dict[str, Tensor]
"""Name to ``(N, G)`` in the storage type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clippable:
    """One weight of the block.

    Attributes:
        weight: Float32 ``(N, K)``.
        grid: What shares a factor.
        mean_square: E[x²] of its inputs, ``(K,)``.
    """

    weight: Tensor
    grid: Grid
    mean_square: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedScales:
    """The best scales of those that were looked at.

    Attributes:
        scales: For every weight of the block.
        losses: Mean loss over all batches by where scales came from: ``rtn`` (nothing clipped), ``rtn-clip``
            (searched) and ``omniquant`` (learned).
    """

    scales: Scales
    losses: Mapping[str, float]

    @property
    def method(self) -> str:
        """Where ``scales`` came from; of equal losses the simpler one."""
        return min(self.losses, key=lambda method: self.losses[method])


def learn_clipping(
    weights: Mapping[str, Clippable],
    loss: BlockLoss,
    batch_count: int,
    *,
    steps: int,
    rate: float,
    scale_dtype: torch.dtype,
) -> LearnedScales:
    """Trains the clip factors of all weights of a block together.

    Args:
        weights: By name.
        loss: Of the block; differentiable in the weights.
        batch_count: Batches that ``loss`` knows; a step takes the next one, round and round.
        steps: Adam steps.
        rate: Learning rate.
        scale_dtype: How scales are stored.

    Returns:
        The learned scales, or those of a simpler method if they are no better.
    """
    plain = {name: w.grid.scales(w.grid.largest(w.weight), scale_dtype) for name, w in weights.items()}
    searched = {
        name: clip_search(w.weight, w.grid, w.mean_square, scale_dtype) for name, w in weights.items()
    }
    with torch.enable_grad():
        learned = _train(weights, searched, loss, batch_count, steps, rate, scale_dtype)
    found = {"rtn": plain, "rtn-clip": searched, "omniquant": learned}
    losses = {method: _mean_loss(weights, scales, loss, batch_count) for method, scales in found.items()}
    best = LearnedScales(scales={}, losses=losses).method
    return LearnedScales(scales=found[best], losses=losses)


def _train(
    weights: Mapping[str, Clippable],
    start: Scales,
    loss: BlockLoss,
    batch_count: int,
    steps: int,
    rate: float,
    scale_dtype: torch.dtype,
) -> Scales:
    largest = {name: w.grid.largest(w.weight) for name, w in weights.items()}
    raw = {name: _parameters(w.grid, largest[name], start[name]) for name, w in weights.items()}

    def clipped(name: str) -> Tensor:
        return largest[name] * torch.sigmoid(raw[name]).expand_as(largest[name])

    optimizer = torch.optim.Adam(raw.values(), lr=rate)
    # Gradients through rounding never settle; steps that shrink to nothing do.
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=steps)
    for step in range(steps):
        candidates = {name: _straight_through(w, clipped(name), scale_dtype) for name, w in weights.items()}
        optimizer.zero_grad()
        loss(candidates, step % batch_count).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        return {name: w.grid.scales(clipped(name), scale_dtype) for name, w in weights.items()}


def _parameters(grid: Grid, largest: Tensor, start: Tensor) -> Tensor:
    """θ such that sigmoid(θ) gives the scales to start from; one for ``tensor`` granularity."""
    shared = (slice(0, 1), slice(0, 1)) if grid.scheme.granularity == "tensor" else (slice(None),) * 2
    unclipped = torch.where(largest > 0, largest / grid.levels, 1.0)
    factors = (start.float() / unclipped).clamp(0.01, _MOST)
    return torch.logit(factors[shared]).requires_grad_()


def _straight_through(item: Clippable, clipped: Tensor, scale_dtype: torch.dtype) -> Tensor:
    """Quantised weights ``(N, K)`` with gradients for the clipped maxima ``(N, G)``."""
    grid = item.grid
    with torch.no_grad():
        stored = grid.scales(clipped, scale_dtype).float()
    smooth = clipped / grid.levels
    scales = (smooth + (stored - smooth).detach())[:, :, None]
    places = grid.grouped(item.weight) / scales
    rounded = places + (places.round() - places).detach()
    return (rounded.clamp(grid.low, grid.high) * scales).reshape(item.weight.shape)


def _mean_loss(weights: Mapping[str, Clippable], scales: Scales, loss: BlockLoss, batch_count: int) -> float:
    with torch.no_grad():
        rounded = {name: w.grid.rounded(w.weight, scales[name]) for name, w in weights.items()}
        return sum(float(loss(rounded, batch)) for batch in range(batch_count)) / batch_count
