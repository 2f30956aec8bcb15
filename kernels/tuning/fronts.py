"""The kernel in front of each product of a layer, which computes the codes of its compensators on the way."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.compensator import GpuCompensator
from kernels.compensator.gpu import gated_codes
from kernels.compensator.layout import scratch_needed
from kernels.producer import code_workspace
from kernels.rms_norm import rms_norm
from kernels.silu_mul import silu_mul
from kernels.w4a16.shapes import Shape
from kernels.w4a16.workspace import Workspace

FRONTS = {"qkv": "rms_norm", "o": "codes", "gate_up": "rms_norm", "down": "silu_mul"}
"""By product. In front of the attention's output stands attention, whose form follows the load: there codes
take a launch of their own."""
EPS = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class Produced:
    """What the kernel in front hands to the product.

    Attributes:
        x: ``(M, K)``, the product's input.
        codes: float32 ``(P, M, S R)``; ``None`` without a compensator.
    """

    x: Tensor
    codes: Tensor | None


class Front:
    """Runs the kernel in front of one product on random input; owns its scratch memory.

    Args:
        shape: The product.
        code_width: Most codes a row.
        rows: Most rows.
        dtype: Compute type.
        device: Where.
        op: Another kernel than the usual one.
    """

    def __init__(
        self,
        shape: Shape,
        *,
        code_width: int,
        rows: int,
        dtype: torch.dtype,
        device: torch.device,
        op: str | None = None,
    ) -> None:
        columns = shape.in_features
        self.op = FRONTS[shape.name] if op is None else op
        width = 2 * columns if self.op == "silu_mul" else columns
        self._x, self._residual = torch.randn(2, rows, width, dtype=dtype, device=device)
        self._norm = torch.rand(columns, dtype=dtype, device=device) + 0.5
        self._codes = code_workspace(rows, columns, code_width, device)
        partials, counters = scratch_needed(code_width, rows)
        self._scratch = Workspace(device, partials=partials, counters=counters)

    def run(self, rows: int, compensator: GpuCompensator | None) -> Produced:
        """The kernel on the first ``rows`` rows, with codes or without."""
        x = self._x[:rows]
        if self.op == "rms_norm":
            normed = rms_norm(x, self._norm, EPS, self._residual[:rows], compensator, self._codes)
            return Produced(x=normed.y, codes=normed.codes)
        if self.op == "silu_mul":
            activated = silu_mul(x, compensator, self._codes)
            return Produced(x=activated.y, codes=activated.codes)
        codes = None if compensator is None else gated_codes(x, compensator, self._scratch)
        return Produced(x=x, codes=codes)
