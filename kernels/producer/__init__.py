"""Codes of compensators, computed by the kernel that produces a layer's input.

The correction of a quantised layer is ``B (gate(A x) * A x)``. The kernel that writes x computes ``A x`` and
the gate on the way; the matrix product then only adds B times the result. Codes are handed on as
``(P, M, S R)``, P parts whose sum they are.
"""

from kernels.producer.reference import gated_codes, total_codes
from kernels.producer.workspace import CodeWorkspace, code_workspace

__all__ = ["CodeWorkspace", "code_workspace", "gated_codes", "total_codes"]
