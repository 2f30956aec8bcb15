"""GPTQ: rounds one input after the other and lets the inputs that are still open make up for the error.

Source: Frantar et al., "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers"
(arXiv 2210.17323), algorithm 1: with H the second moments of the inputs and U the upper Cholesky factor of
H⁻¹, rounding input i leaves the error e = (w_i - ŵ_i) / U_ii, and the open inputs j move by -e U_ij.

Scales are given and static, so that an activation order needs no index in the artefact.
"""

import torch
from torch import Tensor

from spearhead.quant.methods.grid import Grid

_BLOCK = 128
_DAMPING_GROWTH = 10.0
_MOST_DAMPING = 1.0


def gptq(
    weight: Tensor,
    grid: Grid,
    scales: Tensor,
    second: Tensor,
    *,
    damping: float = 0.01,
    act_order: bool = False,
) -> Tensor | None:
    """Codes that minimise ``‖(W - Ŵ) R½‖`` greedily.

    Args:
        weight: Float32 ``(N, K)``, finite.
        grid: Codes and sharing of scales.
        scales: ``(N, G)``.
        second: R, float64 ``(K, K)``, finite.
        damping: Share of the mean second moment that is added to the diagonal. Multiplied by 10, up to 1,
            while the factorisation fails.
        act_order: Visit inputs by falling second moment.

    Returns:
        int8 ``(N, K)``; ``None`` when no damping makes the moments positive definite.
    """
    factor_of = _ordered(second, act_order)
    upper = inverse_factor(second[factor_of][:, factor_of] if act_order else second, damping)
    if upper is None:
        return None
    wide = scales.float().repeat_interleave(weight.shape[1] // scales.shape[1], dim=1)
    codes = _rounded(weight[:, factor_of], wide[:, factor_of], upper.to(weight), grid)
    result = torch.empty_like(codes)
    result[:, factor_of] = codes
    return result


def inverse_factor(second: Tensor, damping: float) -> Tensor | None:
    """The upper Cholesky factor of the damped inverse, float64 ``(K, K)``; ``None`` if there is none.

    Inputs that never occur are treated as independent of all others: their weights are rounded to nearest.
    """
    # Matrices of K by K in float64 take gigabytes each; as few as can be are held together.
    damped, mean = second.clone(), float(second.diagonal().mean())
    diagonal = torch.where(second.diagonal() == 0, 1.0, second.diagonal())
    while damping <= _MOST_DAMPING:
        damped.diagonal().copy_(diagonal + damping * mean)
        lower, failed = torch.linalg.cholesky_ex(damped)
        if not int(failed):
            upper: Tensor
            upper, failed = torch.linalg.cholesky_ex(torch.cholesky_inverse(lower), upper=True)
            if not int(failed) and bool(torch.isfinite(upper).all()):
                return upper
        damping *= _DAMPING_GROWTH
    return None


def _ordered(second: Tensor, act_order: bool) -> Tensor:
    if act_order:
        return torch.argsort(second.diagonal(), descending=True, stable=True)
    return torch.arange(len(second), device=second.device)


def _rounded(weight: Tensor, scales: Tensor, upper: Tensor, grid: Grid) -> Tensor:
    """The column loop; errors reach the columns behind a block once, as one product."""
    work = weight.clone()
    codes = torch.empty(weight.shape, dtype=torch.int8, device=weight.device)
    columns = weight.shape[1]
    for start in range(0, columns, _BLOCK):
        stop = min(start + _BLOCK, columns)
        block, inside = work[:, start:stop], upper[start:stop, start:stop]
        errors = torch.empty_like(block)
        for i in range(stop - start):
            scale = scales[:, start + i]
            code = (block[:, i] / scale).round_().clamp_(grid.low, grid.high)
            codes[:, start + i] = code.to(torch.int8)
            errors[:, i] = (block[:, i] - code * scale) / inside[i, i]
            block[:, i + 1 :].addr_(errors[:, i], inside[i, i + 1 :], alpha=-1)
        work[:, stop:].addmm_(errors, upper[start:stop, stop:], alpha=-1)
    return codes
