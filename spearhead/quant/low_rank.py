"""Closed forms of the low-rank correction B A of a quantisation error E = W - Ŵ.

All minimise ‖(E - B A) S‖ over rank r and differ in S, a scaling of the inputs:

====================  ================================  =============================================
plain SVD             identity                          LoRC (arXiv 2303.08302), LQER (2402.02446)
L²QER                 running peak of mean abs(x)       LQER with its activation scale
QERA-approx           root of E[x²]                     QERA (2410.06040), diagonal
QERA-exact            R^(1/2), R = E[x xᵀ]              QERA; EoRA (2410.21271) and ASER share its optimum
====================  ================================  =============================================

The exact form needs no inverse of R. With the leading eigenpairs (λ, u) of E R Eᵀ, B = u √λ and
A = uᵀ E / √λ: the code A x then has unit variance on the calibration tokens, the gauge in which one
learning rate fits all modules and 16 bits suffice.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from spearhead.quant.moments import Moments

# Components whose singular value is below this share of the largest are noise of float32 weights.
_NOISE = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class LowRank:
    """A correction and what it could have been at any rank.

    Attributes:
        a: float32 ``(R, K)``.
        b: float32 ``(N, R)``; R may be less than was asked for when the error has a lower rank.
        energies: float64 ``(min(N, K),)``, falling: what each component takes off ‖E S‖², 0 from the error's
            own rank on.
    """

    a: Tensor
    b: Tensor
    energies: Tensor

    def residual(self, rank: int) -> float:
        """Share of the energy that is left after ``rank`` components, 1 at rank 0; 0 without any error."""
        total = float(self.energies.sum())
        return float(self.energies[rank:].sum()) / total if total else 0.0


def qera_exact(error: Tensor, moments: Moments, rank: int) -> LowRank:
    """The best correction of the outputs on the calibration tokens.

    Args:
        error: E, any float ``(N, K)``.
        moments: Of the inputs.
        rank: Most components.

    Raises:
        ValueError: ``rank`` is below 1.
    """
    second = moments.second
    wide = error.double()
    outputs, inputs = wide.shape
    if outputs <= inputs:
        values, vectors = _leading(wide @ second @ wide.T)
    else:
        # The K side is smaller: right singular vectors of E R^(1/2).
        root = _square_root(second)
        scaled = wide @ root  # (N, K)
        values, right = _leading(scaled.T @ scaled)
        vectors = scaled @ right / values.clamp(min=torch.finfo(values.dtype).tiny).sqrt()
    values = _without_noise(values)
    kept = _kept(values, rank)
    deviations = values[:kept].sqrt()
    vectors = vectors[:, :kept]  # (N, R)
    return LowRank(
        a=(vectors.T @ wide / deviations[:, None]).float(), b=(vectors * deviations).float(), energies=values
    )


def scaled_svd(error: Tensor, scale: Tensor | None, rank: int) -> LowRank:
    """Truncated SVD of E diag(scale), with the scale taken out of A again.

    Args:
        error: E, any float ``(N, K)``.
        scale: Positive ``(K,)``; ``None`` = plain SVD.
        rank: Most components.
    """
    wide = error.double()
    factor = (
        torch.ones(wide.shape[1], dtype=wide.dtype, device=wide.device) if scale is None else scale.double()
    )
    left, values, right = torch.linalg.svd(wide * factor, full_matrices=False)
    energies = _without_noise(values.square())
    kept = _kept(energies, rank)
    root = values[:kept].sqrt()
    return LowRank(
        a=(root[:, None] * right[:kept] / factor).float(),
        b=(left[:, :kept] * root).float(),
        energies=energies,
    )


def l2qer_scale(moments: Moments) -> Tensor:
    """LQER's activation scale: peak of the mean magnitudes, over the root of its extremes; ``(K,)``."""
    peak = moments.peak_mean_abs.clamp(min=1e-4)
    return (peak / (peak.min() * peak.max()).sqrt()).clamp(min=1e-4)


def qera_approx_scale(moments: Moments) -> Tensor:
    """Root mean square of each input; ``(K,)``. Inputs that are never used get the smallest of the others."""
    root = moments.mean_square.sqrt()
    used = root[root > 0]
    return root.clamp(min=float(used.min()) if len(used) else 1.0)


def loftq(
    weight: Tensor, quantize: Callable[[Tensor], Tensor], rank: int, *, iterations: int = 5
) -> tuple[Tensor, LowRank]:
    """Alternates quantisation of W - B A and a plain SVD of what is left (LoftQ, arXiv 2310.08659).

    Args:
        weight: W, float32 ``(N, K)``.
        quantize: Gives the dequantised weights of its argument.
        rank: Most components.
        iterations: Rounds.

    Returns:
        The quantised weights that the correction belongs to, float32 ``(N, K)``, and the correction.
    """
    quantized = quantize(weight)
    correction = scaled_svd(weight - quantized, None, rank)
    for _ in range(iterations - 1):
        quantized = quantize(weight - correction.b @ correction.a)
        correction = scaled_svd(weight - quantized, None, rank)
    return quantized, correction


def output_error(error: Tensor, moments: Moments) -> float:
    """E‖e x‖² over the calibration tokens: the energy that a correction can take away."""
    wide = error.double()
    return float(((wide @ moments.second) * wide).sum())


def _leading(symmetric: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues (falling, none negative) and eigenvectors, columns."""
    values, vectors = torch.linalg.eigh((symmetric + symmetric.T) / 2)
    return values.flip(0).clamp(min=0.0), vectors.flip(1)


def _square_root(second: Tensor) -> Tensor:
    values, vectors = _leading(second)
    return (vectors * values.sqrt()) @ vectors.T


def _kept(energies: Tensor, rank: int) -> int:
    if rank < 1:
        raise ValueError(f"rank is {rank}; it must be at least 1")
    return min(rank, int(energies.count_nonzero()))


def _without_noise(energies: Tensor) -> Tensor:
    return torch.where(energies > _NOISE**2 * energies[:1], energies, 0.0)
