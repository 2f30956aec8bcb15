"""Gated activation ``silu(gate) * up``, with the codes of compensators after it."""

from torch import Tensor

from kernels.compensator.layout import GpuCompensator
from kernels.producer import CodeWorkspace
from kernels.silu_mul import reference
from kernels.silu_mul.reference import Activated

__all__ = ["Activated", "silu_mul"]


def silu_mul(
    gate_up: Tensor,
    compensator: GpuCompensator | None = None,
    workspace: CodeWorkspace | None = None,
) -> Activated:
    """One pass over ``gate_up (M, 2 K)``: the activation, and gated codes of it.

    Args:
        gate_up: Gate before up.
        compensator: Of the product that reads the result, or ``None``.
        workspace: Needed with a gated compensator on a GPU.

    Raises:
        ValueError: On a GPU, a tensor of the wrong shape, type, device or stride.
    """
    if not gate_up.is_cuda:
        return reference.silu_mul(gate_up, compensator)
    from kernels.silu_mul.kernel import launch

    return launch(gate_up, compensator, workspace)
