"""The law of the gated activation, in float32, with the roundings of the type it is computed in."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.compensator.layout import GpuCompensator
from kernels.producer.reference import gated_codes


@dataclass(frozen=True, slots=True, kw_only=True)
class Activated:
    """What one pass over gate and up yields.

    Attributes:
        y: ``(M, K)``.
        codes: float32 ``(P, M, S R)``, partial codes; ``None`` without compensators.
    """

    y: Tensor
    codes: Tensor | None


def silu_mul(gate_up: Tensor, compensator: GpuCompensator | None = None) -> Activated:
    """``y = round(silu(gate)) * up``, rounded to the type of ``gate_up`` once more.

    Args:
        gate_up: ``(M, 2 K)``, gate before up.
        compensator: Of the product that reads ``y``.
    """
    gate, up = gate_up.float().chunk(2, dim=-1)
    activated = torch.nn.functional.silu(gate).to(gate_up.dtype).float()
    y = (activated * up).to(gate_up.dtype)
    return Activated(y=y, codes=None if compensator is None else gated_codes(y, compensator)[None])
