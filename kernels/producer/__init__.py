"""Codes of compensators, computed by the kernel that produces a layer's input.

The correction of a quantised layer is ``B (gate(A x) * A x)``. The kernel that writes x computes ``A x`` and
the gate on the way; the matrix product then only adds B times the result. Codes are handed on as
``(P, M, S R)``, P parts whose sum they are.
"""

from torch import Tensor

from kernels.producer import reference
from kernels.producer.reference import gated_codes
from kernels.producer.workspace import CodeWorkspace, code_workspace

__all__ = ["CodeWorkspace", "code_workspace", "gated_codes", "total_codes"]


def total_codes(codes: Tensor) -> Tensor:
    """The codes of partial codes, added in rising order, so that a row's bits do not depend on M.

    Args:
        codes: float32 ``(P, M, S R)``, P >= 1; contiguous on a GPU.

    Returns:
        float32 ``(M, S R)``.
    """
    if not codes.is_cuda:
        return reference.total_codes(codes)
    from kernels.producer.total import launch

    return launch(codes)
