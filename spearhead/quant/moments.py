"""Statistics of a projection's inputs over calibration tokens."""

from dataclasses import dataclass

import torch
from torch import Tensor

from spearhead.errors import CalibrationError


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """What closed forms need to know about inputs x of width K.

    Attributes:
        count: Tokens that were seen.
        second: E[x xᵀ], float64 ``(K, K)``.
        mean_abs: E[abs(x)], float64 ``(K,)``.
        peak_mean_abs: Largest mean of abs(x) over any one batch, float64 ``(K,)`` (LQER's scale).
        peak_abs: Largest abs(x), float64 ``(K,)``.
    """

    count: int
    second: Tensor
    mean_abs: Tensor
    peak_mean_abs: Tensor
    peak_abs: Tensor

    @property
    def mean_square(self) -> Tensor:
        """E[x²], float64 ``(K,)``."""
        return self.second.diagonal()


class MomentsAccumulator:
    """Adds up batches of inputs.

    Products are float32 and are summed in float64: single sums over 10⁵ tokens would lose the small ones.

    Args:
        module: Named in errors.
        width: K.
        device: Where sums are kept.
    """

    def __init__(self, module: str, width: int, device: torch.device) -> None:
        self._module = module
        self._second = torch.zeros(width, width, dtype=torch.float64, device=device)
        self._sum_abs, self._peak_mean_abs, self._peak_abs = (
            torch.zeros(width, dtype=torch.float64, device=device) for _ in range(3)
        )
        self._count = 0

    def add(self, x: Tensor, valid: Tensor) -> None:
        """Adds the valid tokens of a batch.

        Args:
            x: ``(B, T, K)``.
            valid: bool ``(B, T)``.

        Raises:
            CalibrationError: An input that is not finite; names the module, sequence and token.
        """
        rows = x[valid].float()  # (tokens, K)
        if not len(rows):
            return
        if not bool(torch.isfinite(rows).all()):
            raise CalibrationError(_not_finite(self._module, x, valid))
        absolute = rows.abs()
        self._second += rows.T @ rows  # added in float64, without a copy of it
        self._sum_abs += absolute.sum(0, dtype=torch.float64)
        self._peak_mean_abs = torch.maximum(self._peak_mean_abs, absolute.mean(0, dtype=torch.float64))
        self._peak_abs = torch.maximum(self._peak_abs, absolute.amax(0).double())
        self._count += len(rows)

    def finish(self) -> Moments:
        """The averages.

        Raises:
            CalibrationError: No token was seen.
        """
        if not self._count:
            raise CalibrationError(f"{self._module} saw no calibration token; give longer sequences")
        return Moments(
            count=self._count,
            second=self._second / self._count,
            mean_abs=self._sum_abs / self._count,
            peak_mean_abs=self._peak_mean_abs,
            peak_abs=self._peak_abs,
        )


def _not_finite(module: str, x: Tensor, valid: Tensor) -> str:
    bad = (~torch.isfinite(x).all(-1) & valid).nonzero()[0].tolist()
    return (
        f"the input of {module} holds NaN or infinity at sequence {bad[0]}, token {bad[1]} of the batch, in "
        f"{str(x.dtype).removeprefix('torch.')}; the weights before it overflow: use float32, or mend the "
        "checkpoint"
    )
