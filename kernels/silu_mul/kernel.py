# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,no-any-return"
# Triton's language has no types that a checker knows.
"""Gated activation with codes in one launch.

A program takes a few rows and slices of the columns; columns do not depend on each other, so only the codes
have anything to add up. The more rows there are, the more a program takes, so that A is read less often. A
row's bits are the same in every form.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.compensator.layout import GpuCompensator
from kernels.overlap import early_start
from kernels.producer.kernel import add_codes, finish_codes, load_a
from kernels.producer.workspace import CodeWorkspace, code_launch, slice_columns, step_columns
from kernels.silu_mul.reference import Activated
from kernels.tensor_checks import FLOATS, require

_PLAIN_COLUMNS = 1024  # a program without codes


@triton.jit(do_not_specialize=["row_count"])  # one compilation for every row count
def silu_mul_kernel(
    gate_up,
    y,
    a,
    w1,
    b1,
    w2,
    b2,
    gated,
    partials,
    arrivals,
    codes,
    row_count,
    row_stride,
    K: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    BLOCK_C: tl.constexpr,
    STEPS: tl.constexpr,
    RUN: tl.constexpr,
    SEGMENTS: tl.constexpr,
    R: tl.constexpr,
    BLOCK_W: tl.constexpr,
    H: tl.constexpr,
    BLOCK_H: tl.constexpr,
    SLICES: tl.constexpr,
    GATED: tl.constexpr,
    ASM: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Grid ``(row tiles, slices / RUN)``; STEPS times BLOCK_C columns a slice."""
    first_row, first_part = tl.program_id(0).to(tl.int64) * TILE_ROWS, tl.program_id(1) * RUN
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
    if SEGMENTS > 0:  # asked for first, since it comes from furthest away
        block = load_a(a, first_part * STEPS * BLOCK_C, K, SEGMENTS * R, BLOCK_C, BLOCK_W)
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
    rows = first_row + tl.arange(0, TILE_ROWS)
    for index in range(RUN):
        part = first_part + index
        own = tl.zeros((16, BLOCK_W), tl.float32)
        for step in range(STEPS):
            first_col = (part * STEPS + step) * BLOCK_C
            cols = first_col + tl.arange(0, BLOCK_C)
            if SEGMENTS > 0 and RUN * STEPS > 1:
                block = load_a(a, first_col, K, SEGMENTS * R, BLOCK_C, BLOCK_W)
            mask = (rows < row_count)[:, None] & (cols < K)[None, :]
            source = gate_up + rows[:, None] * row_stride + cols[None, :]
            gate = tl.load(source, mask=mask, other=0.0).to(tl.float32)
            up = tl.load(source + K, mask=mask, other=0.0).to(tl.float32)
            activated = (gate / (1.0 + tl.exp(-gate))).to(y.dtype.element_ty).to(tl.float32)
            value = (activated * up).to(y.dtype.element_ty)
            tl.store(y + rows[:, None] * K + cols[None, :], value, mask=mask)
            if SEGMENTS > 0:
                own = add_codes(own, value, block, ASM)
        if SEGMENTS > 0:
            finish_codes(
                own, first_row, row_count, part,
                w1, b1, w2, b2, gated, partials, arrivals, codes,
                TILE_ROWS, SEGMENTS, R, BLOCK_W, H, BLOCK_H, SLICES, GATED,
            )  # fmt: skip


def launch(
    gate_up: Tensor,
    compensator: GpuCompensator | None = None,
    workspace: CodeWorkspace | None = None,
) -> Activated:
    """The law of :func:`kernels.silu_mul.reference.silu_mul` on the device of ``gate_up``.

    Args:
        gate_up: ``(M, 2 K)``, rows contiguous, M >= 0.
        compensator: Of the product that reads the result.
        workspace: Needed with a gated compensator.

    Raises:
        ValueError: A tensor that the kernel would misread.
    """
    require(
        "gate_up", gate_up, shape=(None, None), dtypes=FLOATS, device=gate_up.device, rows_contiguous=True
    )
    rows, columns = gate_up.shape[0], gate_up.shape[1] // 2
    if gate_up.shape[1] % 2:
        raise ValueError(f"gate_up has {gate_up.shape[1]} columns; it must hold gate and up, equally wide")
    block = blocks(columns, 0 if compensator is None else compensator.code_width)
    launched = code_launch(gate_up, columns, block["BLOCK_C"] * block["STEPS"], compensator, workspace)
    y = torch.empty(rows, columns, dtype=gate_up.dtype, device=gate_up.device)
    if y.numel():
        silu_mul_kernel[launched.grid](
            gate_up,
            y,
            *launched.tensors,
            rows,
            gate_up.stride(0),
            K=columns,
            **block,
            **launched.constants,
            **launched.program,
            **early_start(silu_mul_kernel, gate_up.device),
        )
    return Activated(y=y, codes=launched.output)


def blocks(columns: int, code_width: int) -> dict[str, int]:
    """Block size and warps for a launch; they depend on nothing that changes from batch to batch.

    Args:
        columns: K.
        code_width: Codes a row, 0 = none.
    """
    size = slice_columns(code_width, columns) if code_width else _PLAIN_COLUMNS
    step = step_columns(code_width, columns) if code_width else size
    return {"BLOCK_C": step, "STEPS": size // step, "num_warps": 4}
