"""Learned weight clipping: one clip factor a row or group, trained so that a block's output stays the same.

Source: Shao et al., "OmniQuant" (arXiv 2308.13137), the learnable weight clipping, symmetric. A factor is
sigmoid(θ), θ starts at 4 (0.98); rounding passes gradients straight through; Adam minimises the mean squared
error of the block. The learnable equivalent transformation of the same paper is not part of this.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from spearhead.quant.methods.grid import Grid

_START = 4.0

BlockLoss = Callable[[Mapping[str, Tensor], int], Tensor]
"""Mean squared error of the block on one batch, from (name to weights, number of the batch)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clippable:
    """One weight of the block.

    Attributes:
        weight: Float32 ``(N, K)``.
        grid: What shares a factor.
    """

    weight: Tensor
    grid: Grid


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedScales:
    """What training found.

    Attributes:
        scales: Name to ``(N, G)`` in the storage type.
        loss_before: Mean over batches with nothing clipped.
        loss_after: The same with the learned factors.
    """

    scales: dict[str, Tensor]
    loss_before: float
    loss_after: float

    @property
    def improved(self) -> bool:
        """Whether the learned factors are those in ``scales``; else nothing is clipped."""
        return self.loss_after < self.loss_before


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
        The learned scales, or the unclipped ones if those are not worse.
    """
    largest = {name: item.grid.largest(item.weight) for name, item in weights.items()}
    plain = {name: weights[name].grid.scales(peak, scale_dtype) for name, peak in largest.items()}
    before = _mean_loss(weights, plain, loss, batch_count)
    with torch.enable_grad():
        learned = _train(weights, largest, loss, batch_count, steps, rate, scale_dtype)
    after = _mean_loss(weights, learned, loss, batch_count)
    return LearnedScales(scales=learned if after < before else plain, loss_before=before, loss_after=after)


def _train(
    weights: Mapping[str, Clippable],
    largest: Mapping[str, Tensor],
    loss: BlockLoss,
    batch_count: int,
    steps: int,
    rate: float,
    scale_dtype: torch.dtype,
) -> dict[str, Tensor]:
    raw = {name: _parameters(peak, weights[name].grid) for name, peak in largest.items()}
    optimizer = torch.optim.Adam(raw.values(), lr=rate)
    for step in range(steps):
        candidates = {
            name: _straight_through(
                item, largest[name] * torch.sigmoid(raw[name]).expand_as(largest[name]), scale_dtype
            )
            for name, item in weights.items()
        }
        optimizer.zero_grad()
        loss(candidates, step % batch_count).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    with torch.no_grad():
        return {
            name: item.grid.scales(
                largest[name] * torch.sigmoid(raw[name]).expand_as(largest[name]), scale_dtype
            )
            for name, item in weights.items()
        }


def _parameters(largest: Tensor, grid: Grid) -> Tensor:
    shape = (1, 1) if grid.scheme.granularity == "tensor" else largest.shape
    return torch.full(shape, _START, device=largest.device, requires_grad=True)


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


def _mean_loss(
    weights: Mapping[str, Clippable], scales: Mapping[str, Tensor], loss: BlockLoss, batch_count: int
) -> float:
    with torch.no_grad():
        rounded = {name: item.grid.rounded(item.weight, scales[name]) for name, item in weights.items()}
        return sum(float(loss(rounded, batch)) for batch in range(batch_count)) / batch_count
