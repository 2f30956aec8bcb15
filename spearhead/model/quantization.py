"""Symmetric 4-bit round-to-nearest: which scale, which code; and weights that are codes already.

The scale is rounded to its storage type *before* codes are computed, so that what is written to disk
dequantises to exactly what was measured in memory.
"""

import re
from dataclasses import dataclass
from typing import Literal, Self, cast, get_args

import torch
from torch import Tensor

from kernels.w4a16 import CODE_MAX, CODE_MIN, dequantize
from spearhead.errors import ConfigError

__all__ = ["Granularity", "InputGroups", "QuantizationScheme", "QuantizedWeight", "dequantize", "rtn"]

Granularity = Literal["tensor", "channel", "group"]
_GROUP_SIZES = (32, 64, 128)
_CONVENTIONS = (7.0, 7.5, 8.0)
_ROWS_AT_ONCE = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizationScheme:
    """How weights share scales, and how a scale follows from the largest weight.

    Attributes:
        granularity: One scale a tensor, a row (output channel), or a group of inputs within a row.
        group_size: Inputs that share a scale: 32, 64 or 128; 0 unless ``granularity`` is ``group``.
        convention: The scale is absmax divided by this: 7 (nothing clips), 7.5 (compressed-tensors) or 8.
    """

    granularity: Granularity
    group_size: int = 0
    convention: float = 7.5

    def __post_init__(self) -> None:
        if self.granularity not in get_args(Granularity):
            raise ValueError(f"granularity is {self.granularity!r}; it must be tensor, channel or group")
        if self.granularity == "group" and self.group_size not in _GROUP_SIZES:
            raise ValueError(f"group size is {self.group_size}; it must be one of {_GROUP_SIZES}")
        if self.granularity != "group" and self.group_size:
            raise ValueError(f"group size {self.group_size} is given for granularity {self.granularity}")
        if self.convention not in _CONVENTIONS:
            raise ValueError(f"convention is {self.convention}; it must be one of {_CONVENTIONS}")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads ``tensor``, ``channel`` or ``group32``, with an optional convention: ``group32/7``.

        Raises:
            ConfigError: Anything else.
        """
        match = re.fullmatch(r"(tensor|channel|group)(\d*)(?:/(\d+(?:\.\d+)?))?", text)
        if match is None:
            raise ConfigError(
                f"quantization {text!r} is not understood; write tensor, channel, group32, group64 or "
                "group128, optionally followed by /7, /7.5 or /8"
            )
        granularity, group_size, convention = match.groups()
        try:
            return cls(
                granularity=cast(Granularity, granularity),
                group_size=int(group_size or 0),
                convention=float(convention or 7.5),
            )
        except ValueError as error:
            raise ConfigError(f"quantization {text!r}: {error}") from error

    def __str__(self) -> str:
        """The form that :meth:`parse` reads."""
        return f"{self.granularity}{self.group_size or ''}/{self.convention:g}"

    @property
    def description(self) -> str:
        """For people, such as ``w4 symmetric, group 32, absmax/7.5``."""
        sharing = f"group {self.group_size}" if self.group_size else f"per {self.granularity}"
        return f"w4 symmetric, {sharing}, absmax/{self.convention:g}"

    def fits(self, in_features: int) -> bool:
        """Whether a projection with this many inputs can be quantised."""
        return not self.group_size or in_features % self.group_size == 0


def rtn(weight: Tensor, scheme: QuantizationScheme, scale_dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Rounds weights to the nearest code.

    Args:
        weight: Any float ``(N, K)``, finite; K is a multiple of the group size.
        scheme: Scales and convention.
        scale_dtype: How scales are stored.

    Returns:
        Codes int8 ``(N, K)`` in ``[-8, 7]`` and scales ``(N, K / G)`` in ``scale_dtype``; one column for
        ``channel`` and ``tensor``, where ``tensor`` repeats one scale.
    """
    rows, in_features = weight.shape
    groups = weight.float().reshape(rows, -1, scheme.group_size or in_features)  # (N, K / G, G)
    largest = groups.abs().amax(dim=2, keepdim=True)  # (N, K / G, 1)
    if scheme.granularity == "tensor":
        largest = largest.amax().expand_as(largest)
    scales = _storable(largest / scheme.convention, scale_dtype)
    codes = torch.round(groups / scales.float()).clamp(CODE_MIN, CODE_MAX).to(torch.int8)
    return codes.reshape(rows, in_features), scales.squeeze(2).contiguous()


def _storable(scales: Tensor, dtype: torch.dtype) -> Tensor:
    # A subnormal scale keeps few bits and readers may flush it to zero. A group of zeros may have any
    # scale; 1 keeps readers that divide by it away from infinities.
    raised = scales.clamp(min=torch.finfo(dtype).tiny)
    return torch.where(scales == 0, torch.ones_like(scales), raised).to(dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class InputGroups:
    """Which inputs of a quantised module share a scale.

    Attributes:
        size: Consecutive inputs in a group; 0 = all inputs of a row.
        act_order: The inputs of a group are scattered (``group_index`` says where).
    """

    size: int
    act_order: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedWeight:
    """One projection's weights as codes.

    ``w[n, k] = (codes[n, k] - zeros[n, g]) * scales[n, g] + minimums[n, g]``

    Codes are signed whatever the format: unsigned ones come with 8 (4 bits) or 128 (8 bits) subtracted, and
    so do their zero points. g is ``group_index[k]``, or ``k // (K / G)`` without an index.

    Attributes:
        bits: 4 or 8; codes lie in ``[-8, 7]`` or ``[-128, 127]``.
        codes: int8 ``(N, K)``.
        scales: Any float ``(N, G)``, finite, possibly negative.
        zeros: int16 ``(N, G)``; ``None`` = all zero: symmetric.
        minimums: Any float ``(N, G)``; ``None`` = all zero.
        group_index: int32 ``(K,)``, each in ``[0, G)``; ``None`` = groups of equal size in order.

    Raises:
        ValueError: Shapes or types that do not fit together.
    """

    bits: int
    codes: Tensor
    scales: Tensor
    zeros: Tensor | None = None
    minimums: Tensor | None = None
    group_index: Tensor | None = None

    def __post_init__(self) -> None:
        if self.bits not in (4, 8) or self.codes.dtype != torch.int8 or self.codes.ndim != 2:
            raise ValueError(f"{self.bits}-bit codes are {self.codes.dtype} {tuple(self.codes.shape)}")
        rows, columns = self.codes.shape
        for tensor in (self.scales, self.zeros, self.minimums):
            if tensor is not None and (tensor.ndim != 2 or tensor.shape != (rows, self.scales.shape[1])):
                raise ValueError(f"{tuple(tensor.shape)} does not fit codes {(rows, columns)}")
        if self.group_index is None and columns % self.scales.shape[1]:
            raise ValueError(f"{self.scales.shape[1]} groups do not divide K = {columns}")
        if self.group_index is not None and self.group_index.shape != (columns,):
            raise ValueError(f"group index {tuple(self.group_index.shape)} does not fit K = {columns}")

    @property
    def symmetric(self) -> bool:
        """Whether a weight is code times scale and nothing more."""
        return self.zeros is None and self.minimums is None

    def dequantize(self) -> Tensor:
        """The weights, float32 ``(N, K)``.

        The product is exact with 16-bit scales; a minimum or a float32 scale rounds once.
        """
        weights = torch.empty(self.codes.shape)
        for start in range(0, self.codes.shape[0], _ROWS_AT_ONCE):  # bounds the temporaries
            rows = slice(start, start + _ROWS_AT_ONCE)
            block = self.codes[rows].float()
            if self.zeros is not None:
                block -= self._spread(self.zeros[rows])
            block *= self._spread(self.scales[rows])
            if self.minimums is not None:
                block += self._spread(self.minimums[rows])
            weights[rows] = block
        return weights

    def _spread(self, grouped: Tensor) -> Tensor:
        """From one value a group to one value an input, float32."""
        if self.group_index is not None:
            return grouped.float()[:, self.group_index]
        return grouped.float().repeat_interleave(self.codes.shape[1] // grouped.shape[1], dim=1)
