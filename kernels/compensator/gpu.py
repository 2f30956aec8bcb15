"""Launches the kernel that computes gated codes. Needs Triton."""

from typing import Protocol

import torch
import triton
from torch import Tensor

from kernels.compensator.kernel import codes_kernel
from kernels.compensator.layout import MAX_SLICES, GpuCompensator

_ROWS = 16  # of one program, for every M: other shapes would add in another order


class Scratch(Protocol):
    """Where partial sums and arrival counters come from (:class:`kernels.w4a16.workspace.Workspace`)."""

    def partials(self, count: int) -> Tensor: ...  # noqa: D102
    def counters(self, count: int) -> Tensor: ...  # noqa: D102


def slice_size(in_features: int) -> int:
    """Inputs of one slice: 256, more where that would be too many slices."""
    return 128 * max(2, -(-in_features // (128 * MAX_SLICES)))


def code_parts(compensator: GpuCompensator) -> int:
    """P of :func:`gated_codes`: slices of K, or 1 with gates, whose input is their sum."""
    inputs = compensator.a.shape[2]
    return 1 if compensator.gate is not None else -(-inputs // slice_size(inputs))


def gated_codes(
    x: Tensor, compensator: GpuCompensator, scratch: Scratch, out: Tensor | None = None
) -> Tensor:
    """``gate(A x) * A x`` of every projection.

    Args:
        x: ``(M, K)`` in the compensator's type, contiguous; M may be 0.
        compensator: Of S projections.
        scratch: Not used by another launch that may run at once.
        out: Contiguous float32 ``(P, M, S R)`` to fill; ``None`` = a new one.

    Returns:
        float32 ``(P, M, S R)``, partial codes; P is :func:`code_parts`.

    Raises:
        ValueError: ``x`` or ``out`` does not fit.
    """
    segments, rank, inputs = compensator.a.shape
    if x.dtype != compensator.a.dtype or x.ndim != 2 or x.shape[1] != inputs or not x.is_contiguous():
        raise ValueError(
            f"x must be contiguous {compensator.a.dtype} (M, {inputs}); got {x.dtype} {tuple(x.shape)}"
        )
    codes = _room(out, (code_parts(compensator), len(x), segments * rank), x.device)
    if not len(x):
        return codes
    size, gate = slice_size(inputs), compensator.gate
    gates = 0 if gate is None else segments  # without gates no program waits for another
    grid = (triton.cdiv(len(x), _ROWS), triton.cdiv(inputs, size), segments)
    codes_kernel[grid](
        x,
        compensator.a,
        *((None,) * 5 if gate is None else (gate.w1, gate.b1, gate.w2, gate.b2, gate.gated)),
        codes,
        scratch.partials(gates * grid[1] * rank * grid[0] * _ROWS),
        scratch.counters(gates * grid[0]),
        len(x),
        inputs,
        BM=_ROWS,
        R=rank,
        H=0 if gate is None else gate.w1.shape[1],
        S=segments,
        SLICE=size,
        SLICES=grid[1],
        ASM=isinstance(codes_kernel, triton.JITFunction),
        num_warps=4,
    )
    return codes


def _room(out: Tensor | None, shape: tuple[int, int, int], device: torch.device) -> Tensor:
    if out is None:
        return torch.empty(shape, dtype=torch.float32, device=device)
    if out.shape != shape or out.dtype != torch.float32 or not out.is_contiguous() or out.device != device:
        raise ValueError(
            f"out must be contiguous float32 {shape} on {device}; got {out.dtype} {tuple(out.shape)} "
            f"on {out.device}"
        )
    return out
