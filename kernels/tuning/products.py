"""Random products for measurements, and the gate that each kernel passes before it is timed."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernels.compensator import Factors, GpuCompensator, naive, pack_compensators
from kernels.producer import total_codes
from kernels.tuning.timing import ROTATED_BYTES, rotation
from kernels.w4a16.layout import TILE_INPUTS, TILE_OUTPUTS, GpuWeight, unpack_gpu
from kernels.w4a16.shapes import Shape

_MOST_COPIES = 512  # of a small operand: 131 KB each are more than an L2
# One rounding of the result, weights and codes rounded once where a path does so.
BOUNDS = {torch.float16: 1e-3, torch.bfloat16: 8e-3}


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """One shape with as many weights as rotate past the L2.

    Attributes:
        weights: All different.
        compensators: One a weight, each of all projections.
        dense: ``(N, K)``, what the first weight stands for, in the compute type.
        dtype: The compute type.
    """

    weights: list[GpuWeight]
    compensators: list[GpuCompensator]
    dense: Tensor
    dtype: torch.dtype

    def inputs(self, rows: int) -> Tensor:
        """Random ``x (rows, K)``."""
        weight = self.weights[0]
        return torch.randn(rows, weight.in_features, dtype=self.dtype, device=weight.words.device)

    def expected(self, x: Tensor, codes: Tensor | None = None) -> Tensor:
        """float32 product of ``x`` with the first weight; ``codes (P, M, S R)`` add the first correction."""
        y = x.float() @ dequantized(self.weights[0]).T
        if codes is not None:
            # Zero at first, so that what is added is the correction alone, in the compute type.
            added = torch.zeros_like(y, dtype=x.dtype)
            naive.add_correction(added, total_codes(codes), self.compensators[0])
            y += added.float()
        return y


_CUDA = torch.device("cuda")


def draw(
    shape: Shape,
    group_size: int,
    rank: int,
    dtype: torch.dtype,
    *,
    device: torch.device = _CUDA,
    copies: int | None = None,
    gated: bool = False,
) -> Product:
    """Draws a product.

    Args:
        shape: What to multiply.
        group_size: 0 = per channel.
        rank: Of each projection's compensator.
        dtype: Compute type.
        device: Where.
        copies: Weights; ``None`` = as many as rotate past the L2.
        gated: Compensators have gates, which calibration leaves out unless it is told otherwise.
    """
    first = _weight(shape, group_size, device)
    count = rotation(first.nbytes) if copies is None else copies
    weights = [first] + [_weight(shape, group_size, device) for _ in range(count - 1)]
    return Product(
        weights=weights,
        compensators=[
            draw_compensator(shape.outputs, shape.in_features, rank, dtype, device, gated=gated)
            for _ in weights
        ],
        dense=dequantized(first).to(dtype),
        dtype=dtype,
    )


def dequantized(weight: GpuWeight) -> Tensor:
    """float32 ``(N, K)``, by torch alone."""
    scales = weight.scales[:, : weight.out_features].T.float()
    groups = scales.repeat_interleave(weight.group_size or weight.in_features, dim=1)
    return unpack_gpu(weight).float() * groups[:, : weight.in_features]


def relative_error(y: Tensor, expected: Tensor) -> float:
    """Relative RMSE; NaN where anything is NaN."""
    return float((y.double() - expected.double()).norm() / expected.double().norm())


def cold(compensator: GpuCompensator, rows: int) -> list[GpuCompensator]:
    """Copies of A that rotate past the L2, as the layers between two uses of it push it out.

    Args:
        compensator: To copy.
        rows: Of a call; beside many of them A is nothing, and few copies save time.
    """
    copies = min(-(-ROTATED_BYTES // compensator.down.nbytes), _MOST_COPIES)
    if rows > 64:
        copies = min(copies, max(_MOST_COPIES * 16 // rows, 4))
    return [compensator] + [replace(compensator, down=compensator.down.clone()) for _ in range(copies - 1)]


def _weight(shape: Shape, group_size: int, device: torch.device) -> GpuWeight:
    """Random words are random codes, so nothing needs to be packed."""
    blocks, chunks = -(-shape.out_features // TILE_OUTPUTS), -(-shape.in_features // TILE_INPUTS)
    groups = -(-chunks * TILE_INPUTS // group_size) if group_size else 1
    size = blocks, chunks, TILE_OUTPUTS, TILE_INPUTS // 8
    return GpuWeight(
        words=torch.randint(-(2**31), 2**31, size, dtype=torch.int32, device=device),
        scales=(torch.rand(groups, blocks * TILE_OUTPUTS, device=device) / 100 + 0.005).half(),
        bias=None,
        out_features=shape.out_features,
        in_features=shape.in_features,
        group_size=group_size,
    )


def draw_compensator(
    outputs: Sequence[int],
    in_features: int,
    rank: int,
    dtype: torch.dtype,
    device: torch.device,
    *,
    gated: bool = False,
) -> GpuCompensator:
    """Draws compensators of the projections of one product.

    Args:
        outputs: N of each projection.
        in_features: K.
        rank: Of each, and width of its gate.
        dtype: Compute type.
        device: Where.
        gated: With gates.
    """

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, device=device)

    factors = [
        Factors(
            a=normal(rank, in_features) / in_features**0.5,
            b=normal(count, rank) / 10,
            gate=(normal(rank, rank), normal(rank), normal(rank, rank), normal(rank)) if gated else None,
        )
        for count in outputs
    ]
    return pack_compensators(factors, dtype)
