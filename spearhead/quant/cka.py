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
