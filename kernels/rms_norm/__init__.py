"""Root-mean-square norm, with the residual sum before it and the codes of compensators after it."""

from torch import Tensor

from kernels.compensator.layout import GpuCompensator
from kernels.producer import CodeWorkspace
from kernels.rms_norm import reference
from kernels.rms_norm.reference import Normed

__all__ = ["Normed", "rms_norm"]


def rms_norm(
    x: Tensor,
    weight: Tensor,
    eps: float,
    residual: Tensor | None = None,
    compensator: GpuCompensator | None = None,
    workspace: CodeWorkspace | None = None,
) -> Normed:
    """One pass over ``x (M, K)``: the sum with the residual, its norm, and gated codes of the norm.

    Args:
        x: ``(M, K)``.
        weight: ``(K,)`` of the same type.
        eps: Added to the mean square.
        residual: ``(M, K)`` of the same type, or ``None``.
        compensator: Of the product that reads the norm, or ``None``.
        workspace: Needed with a gated compensator on a GPU.

    Raises:
        ValueError: On a GPU, a tensor of the wrong shape, type, device or stride.
    """
    if not x.is_cuda:
        return reference.rms_norm(x, weight, eps, residual, compensator)
    from kernels.rms_norm.kernel import launch

    return launch(x, weight, eps, residual, compensator, workspace)
