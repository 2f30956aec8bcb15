"""Linear centred kernel alignment (Kornblith et al., arXiv 1905.00414): how alike two sets of features are.

All sums are float64: the damage of one module, 1 - CKA, may be 1e-5, and float32 sums are noise below 1e-6.
CKA does not see rotations and gains that all features share, so a module whose output shrinks looks whole.
"""

import logging
import math

import torch
from torch import Tensor

from spearhead.errors import CalibrationError

_MIN_TOKENS = 4
_log = logging.getLogger(__name__)


def linear_cka(x: Tensor, y: Tensor, *, name: str = "features") -> float:
    """‖XᵀY‖² / (‖XᵀX‖ ‖YᵀY‖) of centred features.

    Args:
        x: ``(n, p)``, n tokens, at least 4.
        y: ``(n, q)``, of the same tokens.
        name: What they belong to, for errors.

    Returns:
        0 to 1; exactly 1 for equal features. Features that are the same for all tokens say nothing: two
        such sets are alike, with a warning; one of them is unlike any other.

    Raises:
        CalibrationError: NaN or infinity, or fewer than 4 tokens.
    """
    x, y = _checked(x, name), _checked(y, name)
    if _alike(x, y, name):
        return 1.0
    x, y = ((features - features.mean(0)) / _peak(features) for features in (x, y))
    if len(x) < min(x.shape[1], y.shape[1]):
        left, right = x @ x.T, y @ y.T  # (n, n): smaller than the features' own products
        cross, own_x, own_y = (left * right).sum(), left.square().sum(), right.square().sum()
    else:
        cross, own_x, own_y = ((a.T @ b).square().sum() for a, b in ((x, y), (x, x), (y, y)))
    return _ratio(float(cross), float(own_x), float(own_y))


def debiased_cka(x: Tensor, y: Tensor, *, name: str = "features") -> float:
    """CKA from unbiased HSIC (Song et al., JMLR 2012), which few tokens do not inflate.

    Arguments, result and errors are those of :func:`linear_cka`.
    """
    sums = MinibatchCka(name=name)
    sums.add(x, y)
    return sums.similarity()


class MinibatchCka:
    """Averages unbiased HSIC over batches, then divides (Nguyen et al., arXiv 2010.15327).

    Args:
        name: What the features belong to, for errors.
    """

    def __init__(self, *, name: str = "features") -> None:
        self._name = name
        self._sums = [0.0, 0.0, 0.0]
        self._alike = True
        self._peaks: tuple[float, float] | None = None

    def add(self, x: Tensor, y: Tensor) -> None:
        """Takes one batch: ``(n, p)`` and ``(n, q)`` of the same n tokens, at least 4.

        Raises:
            CalibrationError: NaN or infinity, or fewer than 4 tokens.
        """
        x, y = _checked(x, self._name), _checked(y, self._name)
        self._alike = self._alike and _alike(x, y, self._name)
        if self._peaks is None:
            self._peaks = _peak(x), _peak(y)  # one scale for all batches, or they would weigh differently
        # Centring changes nothing but the rounding.
        x, y = ((f - f.mean(0)) / peak for f, peak in zip((x, y), self._peaks, strict=True))
        left, right = x @ x.T, y @ y.T
        for place, pair in enumerate(((left, right), (left, left), (right, right))):
            self._sums[place] += unbiased_hsic(*pair)

    def similarity(self) -> float:
        """CKA of all batches together, 0 to 1."""
        return 1.0 if self._alike else _ratio(*self._sums)


def unbiased_hsic(left: Tensor, right: Tensor) -> float:
    """Unbiased estimate of the Hilbert-Schmidt independence criterion.

    Args:
        left: Gram matrix, float64 ``(n, n)``, n at least 4.
        right: The other, likewise.
    """
    n = len(left)
    left, right = (gram - gram.diagonal().diag() for gram in (left, right))
    trace = (left * right).sum()
    product = left.sum() * right.sum() / ((n - 1) * (n - 2))
    crossed = 2 * left.sum(0) @ right.sum(0) / (n - 2)
    return float((trace + product - crossed) / (n * (n - 3)))


def _checked(features: Tensor, name: str) -> Tensor:
    """Float64 features; those that are the same for all tokens become exactly 0."""
    if len(features) < _MIN_TOKENS:
        raise CalibrationError(
            f"{name}: similarity of {len(features)} tokens means nothing; give at least {_MIN_TOKENS} that "
            "are neither padding nor skipped"
        )
    if not bool(torch.isfinite(features).all()):
        token = int((~torch.isfinite(features).all(-1)).nonzero()[0])
        raise CalibrationError(
            f"{name}: features hold NaN or infinity, first at token {token}; the weights overflow in "
            f"{str(features.dtype).removeprefix('torch.')}: use float32, or mend the checkpoint"
        )
    wide = features.double()
    if bool((wide == wide[:1]).all()):
        return torch.zeros_like(wide)
    return wide


def _peak(features: Tensor) -> float:
    """Largest magnitude, by which products neither overflow nor vanish; 1 where all are 0."""
    return float(features.abs().max()) or 1.0


def _alike(x: Tensor, y: Tensor, name: str) -> bool:
    if not (bool(x.any()) or bool(y.any())):
        _log.warning("%s: features are the same for all tokens, which is taken for no damage", name)
        return True
    return torch.equal(x, y)


def _ratio(cross: float, own_x: float, own_y: float) -> float:
    if own_x <= 0.0 or own_y <= 0.0:
        return 0.0
    return min(1.0, max(0.0, cross / math.sqrt(own_x * own_y)))
