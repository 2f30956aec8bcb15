"""The law of the root-mean-square norm, in float32, with the roundings of the type it is computed in."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.compensator.layout import GpuCompensator
from kernels.producer.reference import gated_codes


@dataclass(frozen=True, slots=True, kw_only=True)
class Normed:
    """What one pass over the hidden state yields.

    Attributes:
        y: ``(M, K)``, the norm.
        hidden: ``(M, K)``, the sum that was normed; the input itself without a residual.
        codes: float32 ``(P, M, S R)``, partial codes; ``None`` without compensators.
    """

    y: Tensor
    hidden: Tensor
    codes: Tensor | None


def rms_norm(
    x: Tensor,
    weight: Tensor,
    eps: float,
    residual: Tensor | None = None,
    compensator: GpuCompensator | None = None,
) -> Normed:
    """``y = round(h / sqrt(mean(h²) + eps)) * weight`` with ``h = x + residual``; see :class:`Normed`.

    Rounded to the type of ``x``: the sum, the scaled row, and its product with the weight.

    Args:
        x: ``(M, K)``.
        weight: ``(K,)``.
        eps: Added to the mean square.
        residual: ``(M, K)`` or ``None``.
        compensator: Of the product that reads ``y``.
    """
    hidden = x if residual is None else (x.float() + residual.float()).to(x.dtype)
    wide = hidden.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    y = ((wide * scale).to(x.dtype).float() * weight.float()).to(x.dtype)
    return Normed(
        y=y, hidden=hidden, codes=None if compensator is None else gated_codes(y, compensator)[None]
    )
