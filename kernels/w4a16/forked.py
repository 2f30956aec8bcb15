"""The correction beside the product, on a stream of its own: what SPEAR calls semi-fused. Needs Triton.

The main stream multiplies codes while a side stream computes ``A x``, the gate and the correction; then both
join and one more pass adds. Under a CUDA graph fork and join are edges of the graph. It hides the correction
only where the product leaves multiprocessors idle, and reads and writes ``y`` once more: measured, not
served.

Everything on the side stream is allocated beforehand: memory that one stream of a capture frees may be given
to the other.
"""

import torch
from torch import Tensor

from kernels.compensator.gpu import code_parts, gated_codes
from kernels.compensator.layout import MAX_SLICES, GpuCompensator, scratch_needed
from kernels.w4a16 import gpu
from kernels.w4a16.layout import GpuWeight
from kernels.w4a16.plan import LayerPlan
from kernels.w4a16.workspace import Workspace


class Forked:
    """Products of one shape with the correction beside them; owns the side stream and its memory.

    Args:
        out_features: N.
        code_width: S R.
        rows: Most rows.
        dtype: Compute type.
        device: On a processor, in Triton's interpreter, both halves run one after the other.
    """

    def __init__(
        self, *, out_features: int, code_width: int, rows: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._side = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        partials, counters = scratch_needed(code_width, rows)
        self._scratch = Workspace(device, partials=partials, counters=counters)
        self._codes = torch.empty(MAX_SLICES, rows, code_width, dtype=torch.float32, device=device)
        self._total = torch.empty(rows, code_width, dtype=torch.float32, device=device)
        self._rounded = torch.empty(rows, code_width, dtype=dtype, device=device)
        self._correction = torch.empty(rows, out_features, dtype=dtype, device=device)

    def multiply(
        self,
        x: Tensor,
        weight: GpuWeight,
        plan: LayerPlan,
        workspace: Workspace,
        compensator: GpuCompensator,
    ) -> Tensor:
        """``x weightᵀ + bias + B (gate(A x) * A x)`` in the type of ``x``; the correction is rounded apart.

        Args:
            x: float16 or bfloat16 ``(M, K)``, contiguous, 16-byte aligned.
            weight: ``(N, K)``.
            plan: The layer's.
            workspace: Of the main stream.
            compensator: In the type of ``x``.

        Returns:
            ``(M, N)``.

        Raises:
            ValueError: Something does not fit the kernels.
        """
        if self._side is None:
            correction = self._correct(x, compensator)
            return gpu.multiply(x, weight, plan, workspace).add_(correction)
        main = torch.cuda.current_stream(x.device)
        self._side.wait_stream(main)
        with torch.cuda.stream(self._side):
            correction = self._correct(x, compensator)
        y = gpu.multiply(x, weight, plan, workspace)
        main.wait_stream(self._side)
        return y.add_(correction)

    def _correct(self, x: Tensor, compensator: GpuCompensator) -> Tensor:
        rows, rank = len(x), compensator.rank
        parts = code_parts(compensator)
        room = self._codes.flatten()[: parts * rows * compensator.code_width]
        codes = gated_codes(x, compensator, self._scratch, room.view(parts, rows, compensator.code_width))
        total = torch.sum(codes, dim=0, out=self._total[:rows])
        limit = torch.finfo(x.dtype).max
        rounded = self._rounded[:rows].copy_(total.clamp_(-limit, limit))
        correction, first = self._correction[:rows], 0
        for place, count in enumerate(compensator.outputs):
            own = slice(first, first + count)
            b = compensator.b[own]
            torch.mm(rounded[:, place * rank : (place + 1) * rank], b.T, out=correction[:, own])
            first += count
        return correction
