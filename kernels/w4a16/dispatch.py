"""Which kernel multiplies: by device, phase and row count."""

from typing import Literal

from torch import Tensor

from kernels.compensator import naive
from kernels.compensator.layout import GpuCompensator
from kernels.w4a16.layout import GpuWeight
from kernels.w4a16.plan import computes_codes
from kernels.w4a16.table import Plans
from kernels.w4a16.workspace import Workspace

Phase = Literal["decode", "prefill"]


class GpuProducts:
    """The W4 products of one stream of one GPU; owns its plans and scratch memory. Needs Triton.

    In phase ``decode`` every row count takes the fused kernel, so that a row has the same bits in any batch.
    In phase ``prefill`` large row counts may take the dense library, where the layer's plan says that it
    wins.

    Args:
        plans: Of this GPU.
        workspace: Large enough for every layer.
    """

    def __init__(self, plans: Plans, workspace: Workspace) -> None:
        # Here, so that machines without Triton can import the package.
        from kernels.compensator import gpu as compensator_gpu
        from kernels.w4a16 import dense, gpu

        self._plans, self._workspace = plans, workspace
        self._fused, self._dense, self._codes = gpu.multiply, dense.multiply, compensator_gpu.gated_codes

    def multiply(
        self,
        x: Tensor,
        weight: GpuWeight,
        *,
        phase: Phase,
        compensator: GpuCompensator | None = None,
        codes: Tensor | None = None,
        room: Tensor | None = None,
    ) -> Tensor:
        """``x weightᵀ + bias + codes Bᵀ`` in the type of ``x``.

        Args:
            x: float16 or bfloat16 ``(M, K)``, contiguous, 16-byte aligned; M may be 0.
            weight: ``(N, K)``.
            phase: What the rows are.
            compensator: ``None`` = no correction.
            codes: float32 ``(P, M, S R)``, partial codes, where a kernel in front has computed them;
                else they are computed here.
            room: As :func:`kernels.w4a16.gpu.multiply` takes it.

        Returns:
            ``(M, N)``.

        Raises:
            ValueError: Something does not fit the kernels.
        """
        plan = self._plans.of(weight)
        if phase == "prefill" and plan.dense_from is not None and len(x) >= plan.dense_from:
            if compensator is not None and codes is None:  # the library is fastest with many rows
                codes = naive.gated_codes(x, compensator)[None]
            return self._dense(x, weight, self._workspace, compensator=compensator, codes=codes)
        if compensator is not None and codes is None and not computes_codes(compensator, len(x)):
            codes = self._codes(x, compensator, self._workspace)
        return self._fused(x, weight, plan, self._workspace, compensator=compensator, codes=codes, room=room)
