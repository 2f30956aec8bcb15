"""Random W4 products with compensators, and what they should give.

On a GPU the kernels are compiled, else they run in Triton's interpreter (tests/kernels/conftest.py).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.compensator import Factors, GpuCompensator, compensate, pack_compensators
from kernels.w4a16 import GpuWeight, LayerPlan, Tile, Workspace, linear, pack, pack_gpu

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

# One rounding of the result (2^-11 and 2^-8, a third of it on average); sums are float32.
# The interpreter cuts bfloat16 off instead of rounding it.
PLAIN_BOUND = {torch.float16: 4e-4, torch.bfloat16: 6e-3}
# In addition, A x of rounded products and codes that are rounded before B.
CORRECTED_BOUND = {torch.float16: 8e-4, torch.bfloat16: 1e-2}


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One product. ``projections`` are (outputs, rank, gated)."""

    rows: int
    outputs: int
    inputs: int
    groups: int = 1
    dtype: torch.dtype = torch.float16
    biased: bool = False
    projections: tuple[tuple[int, int, bool], ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        draw = torch.Generator().manual_seed(self.seed)
        normal = lambda *shape: torch.randn(*shape, generator=draw)  # noqa: E731
        shape = (self.outputs, self.inputs)
        values = {
            "codes": torch.randint(-8, 8, shape, dtype=torch.int8, generator=draw),
            "scales": (torch.rand(self.outputs, self.groups, generator=draw) / 50 + 0.001).half(),
            "bias": normal(self.outputs) if self.biased else None,
            "factors": [
                Factors(
                    a=(normal(rank, self.inputs) / self.inputs**0.5).to(self.dtype),
                    b=normal(count, rank).to(self.dtype),
                    gate=(normal(5, rank), normal(5), normal(rank, 5), normal(rank)) if gated else None,
                )
                for count, rank, gated in self.projections
            ],
            "x": normal(self.rows, self.inputs).to(DEVICE, self.dtype),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def weight(self) -> GpuWeight:
        on = DEVICE
        bias = None if self.bias is None else self.bias.to(on)
        return pack_gpu(self.codes.to(on), self.scales.to(on), bias)

    def compensator(self) -> GpuCompensator | None:
        if not self.factors:
            return None
        moved = [
            Factors(
                a=one.a.to(DEVICE),
                b=one.b.to(DEVICE),
                gate=None if one.gate is None else tuple(part.to(DEVICE) for part in one.gate),
            )
            for one in self.factors
        ]
        return pack_compensators(moved, self.dtype)

    def expected(self) -> Tensor:
        x = self.x.cpu()
        y = linear(x, pack(self.codes), self.scales)
        if self.bias is not None:
            y += self.bias
        if self.factors:
            y += torch.cat([compensate(x, one.a, one.b, one.gate) for one in self.factors], dim=1)
        return y


def plan(
    rows: int = 16,
    outputs: int = 64,
    split: int = 2,
    parts: int | None = None,
    dense_from: int | None = None,
) -> LayerPlan:
    """One tile for every row count; as many parts as programs share them, if not told otherwise."""
    tile = Tile(rows=rows, outputs=outputs, warps=4, stages=3, split=split)
    return LayerPlan(parts=parts or split, tiles=((rows, tile),), dense_from=dense_from)


def workspace(problem: Problem, layer: LayerPlan) -> Workspace:
    """Large enough for every path, and full of NaN."""
    padded = -(-problem.outputs // 64) * 64
    rows = -(-problem.rows // 128) * 128
    width = 256 * len(problem.projections)
    room = Workspace(
        torch.device(DEVICE),
        partials=layer.parts * padded * rows + 32 * width * rows,
        counters=2 + padded // 64 * rows // 16 + width,
        dense_bytes=4 * padded * (problem.inputs + width),
    )
    room.partials(layer.parts * padded * rows + 32 * width * rows).fill_(torch.nan)
    room.dense(1, 2 * padded * (problem.inputs + width), torch.float16).fill_(torch.nan)
    return room


def relative_error(y: Tensor, expected: Tensor) -> float:
    """Relative RMSE; NaN where anything is NaN."""
    return float((y.cpu().double() - expected.double()).norm() / expected.double().norm())


def interpreter_loops() -> bool:
    """Whether kernels with loops run here: Triton 3.6's interpreter fails under numpy 2.4.

    There, arrays of one element are no loop bounds any more.
    """
    if DEVICE == "cuda":
        return True
    from triton.runtime.interpreter import InterpreterError

    from tests.kernels.w4a16.probe import count

    try:
        count[(1,)](torch.zeros(1), 5)
    except InterpreterError:
        return False
    return True
