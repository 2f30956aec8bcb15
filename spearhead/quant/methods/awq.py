"""AWQ: inputs that matter get finer weights, by scaling them up and what comes before the module down.

Source: Lin et al., "AWQ: Activation-aware Weight Quantization" (arXiv 2306.00978). With input scales
s = E|x|ᵃ, W·diag(s) is quantised and diag(1/s) is folded into the norm or projection that makes x. The
exponent a is the one of a grid between 0 and 1 with the least output error; 0 changes nothing, so the error
is never above that of rounding to nearest.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spearhead.quant.methods.grid import Grid
from spearhead.quant.methods.weight_error import squared_error
from spearhead.quant.moments import Moments

_LIMIT = 0.25 * 65504
"""Scaled inputs, weights and their products stay below this: float16 ends at 65504."""
_LEAST = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumer:
    """One of the modules that read the same input.

    Attributes:
        weight: Float32 ``(N, K)``.
        grid: How it will be rounded.
    """

    weight: Tensor
    grid: Grid


def search_input_scales(
    consumers: Sequence[Consumer], moments: Moments, points: int, scale_dtype: torch.dtype
) -> Tensor | None:
    """The best input scales for modules that read the same input.

    Args:
        consumers: At least one.
        moments: Of the input.
        points: Exponents that are tried above 0.
        scale_dtype: How scales of weights are stored.

    Returns:
        s, float32 ``(K,)``, all above 0; ``None`` when nothing beats rounding to nearest.
    """
    mean_abs = moments.mean_abs.to(consumers[0].weight)
    best, least = None, _error(consumers, torch.ones_like(mean_abs), moments, scale_dtype)
    limit = max(_LIMIT, _extent(consumers, torch.ones_like(mean_abs), moments))
    for point in range(1, points + 1):
        scales = _candidate(mean_abs, point / points)
        if _extent(consumers, scales, moments) > limit:
            continue
        error = _error(consumers, scales, moments, scale_dtype)
        if error < least:
            best, least = scales, error
    return best


def _candidate(mean_abs: Tensor, exponent: float) -> Tensor:
    scales = mean_abs.clamp(min=_LEAST) ** exponent
    scales = scales / (scales.amax() * scales.amin()).sqrt()
    # An input that never occurs has no say, and must not stretch the range of the others.
    return torch.where(mean_abs == 0, torch.ones_like(scales), scales)


def _extent(consumers: Sequence[Consumer], scales: Tensor, moments: Moments) -> float:
    """The largest scaled input, weight, or product of the two."""
    inputs = moments.peak_abs.to(scales) / scales
    weights = torch.stack([item.weight.abs().amax(dim=0) for item in consumers]).amax(dim=0) * scales
    return float(torch.stack([inputs, weights, inputs * weights]).amax())


def _error(
    consumers: Sequence[Consumer], scales: Tensor, moments: Moments, scale_dtype: torch.dtype
) -> float:
    total = 0.0
    for item in consumers:
        scaled = item.weight * scales
        rounded = item.grid.rounded(scaled, item.grid.scales(item.grid.largest(scaled), scale_dtype))
        total += squared_error(item.weight - rounded / scales, moments.second)
    return total
