"""The correction as separate torch operators: the baseline that fused paths are measured against."""

import torch.nn.functional as F
from torch import Tensor

from kernels.compensator.layout import GpuCompensator
from kernels.compensator.reference import GATE_INPUT_LIMIT


def gated_codes(x: Tensor, compensator: GpuCompensator) -> Tensor:
    """``gate(A x) * A x`` of every projection, operator by operator.

    Args:
        x: ``(M, K)`` in the compensator's type.
        compensator: Of S projections.

    Returns:
        float32 ``(M, S R)``.
    """
    code = (x @ compensator.down).float()
    gate = compensator.gate
    if gate is None:
        return code
    split = code.view(len(x), compensator.segments, compensator.rank).transpose(0, 1)  # (S, M, R)
    hidden = F.silu(split.clamp(-GATE_INPUT_LIMIT, GATE_INPUT_LIMIT) @ gate.w1.mT + gate.b1[:, None])
    factor = 2 * (hidden @ gate.w2.mT + gate.b2[:, None]).sigmoid()
    factor = factor.where(gate.gated.bool()[:, None, None], 1)
    return (factor * split).transpose(0, 1).reshape(code.shape)


def add_correction(y: Tensor, codes: Tensor, compensator: GpuCompensator) -> None:
    """Adds ``codes Bᵀ`` to ``y`` in place, projection by projection.

    Args:
        y: ``(M, N)``, contiguous.
        codes: float32 ``(M, S R)``.
        compensator: Of S projections with N outputs in all.
    """
    first, rank = 0, compensator.rank
    for place, count in enumerate(compensator.outputs):
        own = codes[:, place * rank : (place + 1) * rank].to(y.dtype)
        y[:, first : first + count].addmm_(own, compensator.b[first : first + count].T)
        first += count
