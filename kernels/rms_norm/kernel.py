# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,no-any-return"
# Triton's language has no types that a checker knows.
"""Root-mean-square norm with residual and codes in one launch.

A program takes a few rows and slices of the columns. It reads its rows whole for the mean square, which costs
little since they come from the L2 after the first program, and writes its slices only. With codes and few
rows the slices are many programs, so that A is read by many multiprocessors at once; the more rows there are,
the more rows and slices a program takes, so that A and x are read less often. A row's bits are the same in
every form.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.compensator.layout import GpuCompensator
from kernels.overlap import early_start
from kernels.producer.kernel import add_codes, finish_codes, load_a
from kernels.producer.workspace import CodeWorkspace, code_launch, slice_columns, step_columns
from kernels.rms_norm.reference import Normed
from kernels.tensor_checks import FLOATS, power_of_two, require

_FEW_ROWS = 64  # beyond, rows share a program, which takes their mean squares one after the other


@triton.jit
def _hidden(at, added_at, mask, HAS_RESIDUAL: tl.constexpr):
    """The sum with the residual, rounded as it is stored, in float32."""
    value = tl.load(at, mask=mask, other=0.0)
    if HAS_RESIDUAL:
        added = tl.load(added_at, mask=mask, other=0.0)
        value = (value.to(tl.float32) + added.to(tl.float32)).to(value.dtype)
    return value.to(tl.float32)


@triton.jit
def _scales(
    x,
    residual,
    first_row,
    row_count,
    x_stride,
    residual_stride,
    eps,
    K: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
):
    """(TILE_ROWS,): one over the root of the mean square, a few rows at a time.

    Narrow rows one at a time: the compiler spreads few columns of several rows over threads otherwise than
    those of one, and adds them in another order. From 1024 columns on, 16 bytes a thread, a row takes all
    threads either way.
    """
    AT_ONCE: tl.constexpr = 4 if TILE_ROWS > 4 and BLOCK_K >= 1024 else 1
    tile = tl.arange(0, TILE_ROWS)
    scales = tl.zeros((TILE_ROWS,), tl.float32)
    for group in tl.static_range(TILE_ROWS // AT_ONCE):
        rows = first_row + group * AT_ONCE + tl.arange(0, AT_ONCE)
        squares = tl.zeros((AT_ONCE, BLOCK_K), tl.float32)
        for start in tl.static_range(0, K, BLOCK_K):
            cols = start + tl.arange(0, BLOCK_K)
            mask = (rows < row_count)[:, None] & (cols < K)[None, :]
            at = x + rows[:, None] * x_stride + cols[None, :]
            added_at = residual + rows[:, None] * residual_stride + cols[None, :]
            value = _hidden(at, added_at, mask, HAS_RESIDUAL)
            squares += value * value
        own = 1.0 / tl.sqrt(tl.sum(squares, 1) / K + eps)
        spread = tl.reshape(tl.broadcast_to(own[None, :], (TILE_ROWS // AT_ONCE, AT_ONCE)), (TILE_ROWS,))
        scales = tl.where(tile // AT_ONCE == group, spread, scales)
    return scales


@triton.jit(do_not_specialize=["row_count"])  # one compilation for every row count
def rms_norm_kernel(
    x,
    residual,
    weight,
    y,
    hidden,
    a,
    w1,
    b1,
    w2,
    b2,
    gated,
    partials,
    arrivals,
    codes,
    eps,
    row_count,
    x_stride,
    residual_stride,
    K: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_C: tl.constexpr,
    STEPS: tl.constexpr,
    RUN: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
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
    """Grid ``(row tiles, slices / RUN)``; BLOCK_K columns a step of the mean square, STEPS times
    BLOCK_C a slice."""
    first_row, first_part = tl.program_id(0).to(tl.int64) * TILE_ROWS, tl.program_id(1) * RUN
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
    # Constants are asked for first, since they come from furthest away.
    first_cols = first_part * STEPS * BLOCK_C + tl.arange(0, BLOCK_C)
    factor = tl.load(weight + first_cols, mask=first_cols < K, other=0.0)
    if SEGMENTS > 0:
        block = load_a(a, first_part * STEPS * BLOCK_C, K, SEGMENTS * R, BLOCK_C, BLOCK_W)
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
    scales = _scales(
        x, residual, first_row, row_count, x_stride, residual_stride, eps,
        K, TILE_ROWS, BLOCK_K, HAS_RESIDUAL,
    )  # fmt: skip
    rows = first_row + tl.arange(0, TILE_ROWS)
    for index in range(RUN):
        part = first_part + index
        own = tl.zeros((16, BLOCK_W), tl.float32)
        for step in range(STEPS):
            first_col = (part * STEPS + step) * BLOCK_C
            cols = first_col + tl.arange(0, BLOCK_C)
            if RUN * STEPS > 1:
                factor = tl.load(weight + cols, mask=cols < K, other=0.0)
                if SEGMENTS > 0:
                    block = load_a(a, first_col, K, SEGMENTS * R, BLOCK_C, BLOCK_W)
            mask = (rows < row_count)[:, None] & (cols < K)[None, :]
            at = x + rows[:, None] * x_stride + cols[None, :]
            added_at = residual + rows[:, None] * residual_stride + cols[None, :]
            value = _hidden(at, added_at, mask, HAS_RESIDUAL)
            places = rows[:, None] * K + cols[None, :]
            if HAS_RESIDUAL:
                tl.store(hidden + places, value.to(hidden.dtype.element_ty), mask=mask)
            scaled = (value * scales[:, None]).to(y.dtype.element_ty).to(tl.float32)
            normed = (scaled * factor.to(tl.float32)[None, :]).to(y.dtype.element_ty)
            tl.store(y + places, normed, mask=mask)
            if SEGMENTS > 0:
                own = add_codes(own, normed, block, ASM)
        if SEGMENTS > 0:
            finish_codes(
                own, first_row, row_count, part,
                w1, b1, w2, b2, gated, partials, arrivals, codes,
                TILE_ROWS, SEGMENTS, R, BLOCK_W, H, BLOCK_H, SLICES, GATED,
            )  # fmt: skip


def launch(
    x: Tensor,
    weight: Tensor,
    eps: float,
    residual: Tensor | None = None,
    compensator: GpuCompensator | None = None,
    workspace: CodeWorkspace | None = None,
) -> Normed:
    """The law of :func:`kernels.rms_norm.reference.rms_norm` on the device of ``x``.

    Args:
        x: ``(M, K)``, rows contiguous, M >= 0.
        weight: ``(K,)`` of the same type.
        eps: Added to the mean square.
        residual: ``(M, K)`` of the same type, rows contiguous.
        compensator: Of the product that reads the norm.
        workspace: Needed with a gated compensator.

    Raises:
        ValueError: A tensor that the kernel would misread.
    """
    require("x", x, shape=(None, None), dtypes=FLOATS, device=x.device, rows_contiguous=True)
    rows, columns = x.shape
    require("weight", weight, shape=(columns,), dtypes=(x.dtype,), device=x.device)
    if residual is not None:
        require(
            "residual",
            residual,
            shape=(rows, columns),
            dtypes=(x.dtype,),
            device=x.device,
            rows_contiguous=True,
        )
    block = blocks(columns, 0 if compensator is None else compensator.code_width)
    launched = code_launch(
        x, columns, block["BLOCK_C"] * block["STEPS"], compensator, workspace, few_rows=_FEW_ROWS
    )
    y = torch.empty(rows, columns, dtype=x.dtype, device=x.device)
    hidden = x if residual is None else torch.empty_like(y)
    if rows:
        rms_norm_kernel[launched.grid](
            x,
            x if residual is None else residual,
            weight,
            y,
            hidden,
            *launched.tensors,
            eps,
            rows,
            x.stride(0),
            x.stride(0) if residual is None else residual.stride(0),
            K=columns,
            HAS_RESIDUAL=residual is not None,
            **block,
            **launched.constants,
            **launched.program,
            **early_start(rms_norm_kernel, x.device),
        )
    return Normed(y=y, hidden=hidden, codes=launched.output)


def blocks(columns: int, code_width: int) -> dict[str, int]:
    """Block sizes and warps for a launch; they depend on nothing that changes from batch to batch.

    Args:
        columns: K.
        code_width: Codes a row, 0 = none.
    """
    whole = min(power_of_two(columns), 4096)
    size = slice_columns(code_width, columns) if code_width else whole
    step = step_columns(code_width, columns) if code_width else size
    return {
        "BLOCK_K": whole,
        "BLOCK_C": step,
        "STEPS": size // step,
        "num_warps": 4,  # for either: with more, a row's squares would be added in another order
    }
