"""Launches the kernel that computes gated codes. Needs Triton."""

from typing import Protocol

from torch import Tensor

from kernels.compensator.kernel import codes_kernel
from kernels.compensator.layout import GpuCompensator
from kernels.overlap import early_start
from kernels.producer.workspace import CodeWorkspace, code_launch, slice_columns, step_columns
from kernels.tensor_checks import require


class Scratch(Protocol):
    """Where partial sums and arrival counters come from (:class:`kernels.w4a16.workspace.Workspace`)."""

    def partials(self, count: int) -> Tensor: ...  # noqa: D102
    def counters(self, count: int) -> Tensor: ...  # noqa: D102


def code_parts(compensator: GpuCompensator) -> int:
    """P of :func:`gated_codes`: slices of K, or 1 with gates, whose input is their sum."""
    columns, width = compensator.down.shape
    return 1 if compensator.gate is not None else -(-columns // slice_columns(width, columns))


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
    columns, width = compensator.down.shape
    require("x", x, shape=(None, columns), dtypes=(compensator.down.dtype,), device=compensator.down.device)
    size, step, rows = slice_columns(width, columns), step_columns(width, columns), len(x)
    waiting = rows if compensator.gate is not None else 0  # without gates no program waits for another
    space = CodeWorkspace(
        partials=scratch.partials(waiting * -(-columns // size) * width),
        arrivals=scratch.counters(waiting),
    )
    launched = code_launch(x, columns, size, compensator, space, out)
    if launched.output is None:
        raise AssertionError("a compensator has codes")
    if rows:
        codes_kernel[launched.grid](
            x,
            *launched.tensors,
            rows,
            K=columns,
            BLOCK_C=step,
            STEPS=size // step,
            num_warps=4,
            **launched.constants,
            **launched.program,
            **early_start(codes_kernel, x.device),
        )
    return launched.output
