"""The values that a quantised weight can take: which scales, which codes. Every method rounds onto this grid.

Four bits follow :func:`spearhead.model.quantization.rtn` to the last bit; eight bits are the same law on
256 codes.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from spearhead.model.quantization import QuantizationScheme, dequantize


class Reduction(Protocol):
    """What ``torch.amax`` and ``torch.sum`` have in common."""

    def __call__(self, values: Tensor, /, dim: tuple[int, ...], keepdim: bool) -> Tensor:
        """Reduces ``values`` over ``dim``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Symmetric integer codes times one scale a tensor, row or group.

    Attributes:
        scheme: What shares a scale, and the convention for 4 bits.
        bits: 4 or 8.
    """

    scheme: QuantizationScheme
    bits: int = 4

    def __post_init__(self) -> None:
        if self.bits not in (4, 8):
            raise ValueError(f"bits are {self.bits}; they must be 4 or 8")

    @property
    def low(self) -> int:
        """Smallest code."""
        return -(1 << (self.bits - 1))

    @property
    def high(self) -> int:
        """Largest code."""
        return (1 << (self.bits - 1)) - 1

    @property
    def levels(self) -> float:
        """The scale is absmax divided by this: 7, 7.5 or 8 with 4 bits; 127, 127.5 or 128 with 8."""
        return self.scheme.convention + self.high - 7

    def grouped(self, weight: Tensor) -> Tensor:
        """``(N, K)`` seen as ``(N, G, K / G)``: what shares a scale lies in the last dimension."""
        return weight.reshape(weight.shape[0], -1, self.scheme.group_size or weight.shape[1])

    def largest(self, weight: Tensor) -> Tensor:
        """Largest absolute weight of what shares a scale, ``(N, G)``; repeated over rows for ``tensor``."""
        return self.shared(self.grouped(weight).abs().amax(dim=2), torch.amax)

    def shared(self, values: Tensor, over: Reduction) -> Tensor:
        """Values ``(N, G)`` reduced over everything that shares a scale, in the same shape."""
        if self.scheme.granularity == "tensor":
            return over(values, dim=(0, 1), keepdim=True).expand_as(values)
        return values

    def scales(self, largest: Tensor, dtype: torch.dtype) -> Tensor:
        """Storable scales that make ``largest`` the end of the grid.

        Args:
            largest: ``(N, G)``, at least 0; clipped as the method likes.
            dtype: How scales are stored.

        Returns:
            ``(N, G)``. No scale is subnormal, for readers may flush it to zero; where ``largest`` is 0 the
            scale is 1, which keeps readers that divide by it away from infinities.
        """
        scales = largest.float() / self.levels
        raised = scales.clamp(min=torch.finfo(dtype).tiny)
        return torch.where(scales == 0, torch.ones_like(scales), raised).to(dtype).contiguous()

    def codes(self, weight: Tensor, scales: Tensor) -> Tensor:
        """The nearest codes, int8 ``(N, K)``, of weights ``(N, K)`` for scales ``(N, G)``."""
        places = self.grouped(weight.float()) / scales.float()[:, :, None]
        return places.round_().clamp_(self.low, self.high).to(torch.int8).reshape(weight.shape)

    def rounded(self, weight: Tensor, scales: Tensor) -> Tensor:
        """The nearest values on the grid, float32 ``(N, K)``."""
        return dequantize(self.codes(weight, scales), scales)
