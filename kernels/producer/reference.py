"""The law of gated codes, in float32: ``gate(A x) * A x``, which a producer hands to the product with B."""

import torch
from torch import Tensor

from kernels.compensator.layout import GpuCompensator, GpuGate
from kernels.compensator.reference import GATE_INPUT_LIMIT


def gated_codes(x: Tensor, compensator: GpuCompensator) -> Tensor:
    """Codes of each row, times their gate, projection after projection.

    Args:
        x: Any float ``(M, K)``, the layer's input as the product sees it.
        compensator: Of S projections, rank R each.

    Returns:
        float32 ``(M, S R)``.
    """
    parts = [x.float() @ a.float().T for a in compensator.a]
    if compensator.gate is not None:
        gates = [_gate(part, compensator.gate, place) for place, part in enumerate(parts)]
        parts = [part * gate for part, gate in zip(parts, gates, strict=True)]
    return torch.cat(parts, dim=1)


def total_codes(codes: Tensor) -> Tensor:
    """The codes of partial codes, added in rising order, so that a row's bits do not depend on M.

    Args:
        codes: float32 ``(P, M, S R)``, P >= 1.

    Returns:
        float32 ``(M, S R)``.
    """
    total = codes[0]
    for part in codes[1:]:
        total = total + part
    return total


def _gate(code: Tensor, gate: GpuGate, place: int) -> Tensor:
    if not int(gate.gated[place]):
        return torch.ones_like(code)
    limited = code.clamp(-GATE_INPUT_LIMIT, GATE_INPUT_LIMIT)
    hidden = torch.nn.functional.silu(limited @ gate.w1[place].T + gate.b1[place])
    return 2 * torch.sigmoid(hidden @ gate.w2[place].T + gate.b2[place])
