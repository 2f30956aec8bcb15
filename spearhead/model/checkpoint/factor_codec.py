"""The factors of compensators in 16, 8 or 4 bits."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from kernels.w4a16 import pack, unpack
from spearhead.errors import CheckpointError

FactorBits = Literal[4, 8, 16]
_LARGEST_CODE = {4: 7, 8: 127}


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedFactor:
    """One factor with its ranks as rows: A as it is, B transposed.

    Attributes:
        bits: Of one element.
        values: 16: float ``(R, L)``; 8: int8 ``(R, L)``; 4: int32 ``(R, ceil(L / 8))``, code i of a word at
            bits ``4 i``, stored as code + 8.
        scales: float32 ``(R,)``, one a rank; ``None`` for 16 bits.
        length: L: inputs for A, outputs for B.
    """

    bits: FactorBits
    values: Tensor
    scales: Tensor | None
    length: int


def encode_factor(factor: Tensor, *, bits: FactorBits, dtype: torch.dtype = torch.bfloat16) -> EncodedFactor:
    """Rounds a factor to what is stored; :func:`decode_factor` gives what will be used.

    Args:
        factor: Any float ``(R, L)``.
        bits: 16, or 8 or 4 with one scale a row, largest magnitude over 127 or 7.
        dtype: Of 16-bit values.

    Raises:
        CheckpointError: NaN or infinity, also such as arises in ``dtype``.
    """
    if bits == 16:
        return EncodedFactor(bits=16, values=_finite(factor.to(dtype)), scales=None, length=factor.shape[1])
    rounded, scales = factor_codes(_finite(factor.float()), bits)
    codes = rounded.to(torch.int8)
    return EncodedFactor(
        bits=bits, values=codes if bits == 8 else pack(codes), scales=scales, length=factor.shape[1]
    )


def factor_codes(factor: Tensor, bits: FactorBits) -> tuple[Tensor, Tensor]:
    """Codes and scales of a factor in 8 or 4 bits; nothing is checked and nothing waits for a device.

    Args:
        factor: float32 ``(R, L)``.
        bits: 8 or 4.

    Returns:
        Whole numbers, float32 ``(R, L)``, and scales, float32 ``(R,)``.
    """
    largest = factor.abs().amax(dim=1)
    scales = (largest / _LARGEST_CODE[bits]).clamp(min=torch.finfo(torch.float32).tiny)
    return torch.round(factor / scales[:, None]), scales


def decode_factor(encoded: EncodedFactor) -> Tensor:
    """The factor that an encoded one stands for, float32 ``(R, L)``."""
    if encoded.scales is None:
        return encoded.values.float()
    codes = encoded.values if encoded.bits == 8 else unpack(encoded.values, encoded.length)
    return codes.float() * encoded.scales.float()[:, None]


def _finite(factor: Tensor) -> Tensor:
    if not bool(torch.isfinite(factor).all()):
        raise CheckpointError(
            f"a compensator's factor {tuple(factor.shape)} holds NaN or infinity as {factor.dtype}; "
            "fit it again, or store it in a type of wider range"
        )
    return factor
