"""Compensators in the order in which the GPU kernels read them.

Projections that share their input are one product (q, k and v; gate and up), and each may have a compensator
of its own rank. They become one tensor each of A, B and gates, all of the largest rank, filled up with zeros;
the rows of B belong to projections by ranges.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.compensator.reference import GateWeights

MAX_SLICES = 64
"""Most slices of K in which codes are computed."""

_MMA_K = 16  # ranks and gate widths are filled up to what one tensor-core step takes


@dataclass(frozen=True, slots=True, kw_only=True)
class Factors:
    """The compensator of one projection.

    Attributes:
        a: ``(R, K)``.
        b: ``(N, R)``.
        gate: ``None`` = static.
    """

    a: Tensor
    b: Tensor
    gate: GateWeights | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuGate:
    """Gates of S projections, filled up with zeros; a projection without one is marked static.

    Attributes:
        w1: float32 ``(S, H, R)``.
        b1: float32 ``(S, H)``.
        w2: float32 ``(S, R, H)``.
        b2: float32 ``(S, R)``.
        gated: int32 ``(S,)``, 1 = gated.
    """

    w1: Tensor
    b1: Tensor
    w2: Tensor
    b2: Tensor
    gated: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuCompensator:
    """Compensators of the S projections of one product.

    Attributes:
        down: ``(K, S R)`` in the compute type, the A of all projections side by side; R is a multiple of 16.
        b: ``(64 ceil(N / 64), R)`` in the compute type.
        bounds: int32: projection s owns the outputs ``[bounds[s], bounds[s + 1])``; filled up with N to a
            power of two of projections.
        outputs: The projections' output counts.
        gate: ``None`` = all static.
    """

    down: Tensor
    b: Tensor
    bounds: Tensor
    outputs: tuple[int, ...]
    gate: GpuGate | None

    @property
    def a(self) -> Tensor:
        """``(S, R, K)``, a view."""
        return self.down.view(-1, self.segments, self.rank).permute(1, 2, 0)

    @property
    def ends(self) -> tuple[int, ...]:
        """Where the outputs of each projection end."""
        return tuple(accumulate(self.outputs))

    @property
    def segments(self) -> int:
        """S."""
        return len(self.outputs)

    @property
    def rank(self) -> int:
        """R, as filled up."""
        return self.b.shape[1]

    @property
    def code_width(self) -> int:
        """Columns of the codes ``zg``: S R, projection by projection."""
        return self.down.shape[1]


def pack_compensators(factors: Sequence[Factors], dtype: torch.dtype) -> GpuCompensator:
    """Lays the compensators of one product out for the GPU kernels.

    Args:
        factors: One a projection, in the order of the product's outputs; rank 0 = no compensator.
        dtype: Compute type, float16 or bfloat16.

    Raises:
        ValueError: No projection is given, or their shapes do not fit each other.
    """
    if not factors:
        raise ValueError("no projection; a product without compensators takes None")
    for place, one in enumerate(factors):
        if one.a.shape[1] != factors[0].a.shape[1] or one.b.shape[1] != one.a.shape[0]:
            raise ValueError(
                f"projection {place}: a must be (R, {factors[0].a.shape[1]}) and b (N, R); "
                f"got {tuple(one.a.shape)} and {tuple(one.b.shape)}"
            )
    rank = _filled(max(one.a.shape[0] for one in factors))
    outputs = tuple(one.b.shape[0] for one in factors)
    unused = (1 << (len(outputs) - 1).bit_length()) - len(outputs)
    bounds = torch.tensor([0, *outputs, *[0] * unused]).cumsum(0)
    b = torch.cat([F.pad(one.b, (0, rank - one.b.shape[1])) for one in factors])
    return GpuCompensator(
        down=torch.cat([F.pad(one.a.T, (0, rank - one.a.shape[0])) for one in factors], dim=1).to(dtype),
        b=F.pad(b, (0, 0, 0, -len(b) % 64)).to(dtype).contiguous(),
        bounds=bounds.to(device=b.device, dtype=torch.int32),
        outputs=outputs,
        gate=_gates(factors, rank),
    )


def scratch_needed(code_width: int, rows: int) -> tuple[int, int]:
    """Partial codes and arrival counters that :func:`kernels.compensator.gpu.gated_codes` needs at most."""
    return code_width * MAX_SLICES * rows, rows


def write_dense_b(compensator: GpuCompensator, target: Tensor) -> None:
    """Writes B as one matrix, zero outside the projections' own ranges.

    Args:
        compensator: Of S projections with N outputs in all.
        target: ``(N, S R)``, overwritten.
    """
    target.zero_()
    first, rank = 0, compensator.rank
    for place, count in enumerate(compensator.outputs):
        own = slice(first, first + count)
        target[own, place * rank : (place + 1) * rank] = compensator.b[own]
        first += count


def _gates(factors: Sequence[Factors], rank: int) -> GpuGate | None:
    gates = [one.gate for one in factors]
    if all(gate is None for gate in gates):
        return None
    width = _filled(max(gate[0].shape[0] for gate in gates if gate is not None))
    device = factors[0].a.device
    stacked = GpuGate(
        w1=torch.zeros(len(gates), width, rank, device=device),
        b1=torch.zeros(len(gates), width, device=device),
        w2=torch.zeros(len(gates), rank, width, device=device),
        b2=torch.zeros(len(gates), rank, device=device),
        gated=torch.tensor([gate is not None for gate in gates], dtype=torch.int32, device=device),
    )
    for place, gate in enumerate(gates):
        if gate is not None:
            w1, b1, w2, b2 = gate
            stacked.w1[place, : w1.shape[0], : w1.shape[1]] = w1
            stacked.b1[place, : len(b1)] = b1
            stacked.w2[place, : w2.shape[0], : w2.shape[1]] = w2
            stacked.b2[place, : len(b2)] = b2
    return stacked


def _filled(count: int) -> int:
    return max(_MMA_K, 1 << (count - 1).bit_length())
