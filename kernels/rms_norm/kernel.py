# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,no-any-return"
# Triton's language has no types that a checker knows.
"""Root-mean-square norm with residual and codes in one launch.

A program takes a tile of rows and a slice of the columns. It reads its rows whole for the mean square, which
costs little since they come from the L2 after the first program, and writes its slice only. With codes the
slices are many, so that A is read by many multiprocessors at once; without codes there is one.

With one row a program (up to :data:`SMALL_BATCH` rows) A is read once a row, from the L2; beyond, 16 rows
share it and tensor cores multiply. Within either form a row's result does not depend on M or its place;
between the two the last bits of y and codes may differ, so ``tile_rows`` can be pinned.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.compensator.layout import GpuCompensator
from kernels.overlap import early_start
from kernels.producer.kernel import accumulate_codes, finish_codes, load_a, zero_codes
from kernels.producer.workspace import CodeWorkspace, code_launch, slice_columns
from kernels.rms_norm.reference import Normed
from kernels.tensor_checks import FLOATS, power_of_two, require

SMALL_BATCH = 64


@triton.jit
def _hidden(
    x,
    residual,
    rows,
    cols,
    mask,
    x_stride,
    residual_stride,
    HAS_RESIDUAL: tl.constexpr,
):
    """(tile_rows, columns) of the sum, rounded as it is stored, in float32."""
    value = tl.load(x + rows[:, None] * x_stride + cols[None, :], mask=mask, other=0.0)
    if HAS_RESIDUAL:
        added = tl.load(residual + rows[:, None] * residual_stride + cols[None, :], mask=mask, other=0.0)
        value = (value.to(tl.float32) + added.to(tl.float32)).to(value.dtype)
    return value.to(tl.float32)


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
    SLICE: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    SEGMENTS: tl.constexpr,
    R: tl.constexpr,
    BLOCK_W: tl.constexpr,
    H: tl.constexpr,
    BLOCK_H: tl.constexpr,
    SLICES: tl.constexpr,
    GATED: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Grid ``(row tiles, SLICES)``; BLOCK_K columns a step of the mean square, BLOCK_C of the output."""
    tile, part = tl.program_id(0), tl.program_id(1)
    rows = tile.to(tl.int64) * TILE_ROWS + tl.arange(0, TILE_ROWS)
    row_mask = rows < row_count
    if SEGMENTS > 0 and SLICE == BLOCK_C:  # asked for first, since it comes from furthest away
        own = part * SLICE + tl.arange(0, BLOCK_C)
        block = load_a(a, own, own < K, K, SEGMENTS * R, BLOCK_W)
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    squares = tl.zeros((TILE_ROWS, BLOCK_K), tl.float32)
    for start in range(0, K, BLOCK_K):
        cols = start + tl.arange(0, BLOCK_K)
        mask = row_mask[:, None] & (cols < K)[None, :]
        value = _hidden(x, residual, rows, cols, mask, x_stride, residual_stride, HAS_RESIDUAL)
        squares += value * value
    scale = 1.0 / tl.sqrt(tl.sum(squares, 1) / K + eps)

    acc = zero_codes(TILE_ROWS, BLOCK_W, BLOCK_C)
    for start in range(0, SLICE, BLOCK_C):
        cols = part * SLICE + start + tl.arange(0, BLOCK_C)
        column_mask = cols < K
        mask = row_mask[:, None] & column_mask[None, :]
        value = _hidden(x, residual, rows, cols, mask, x_stride, residual_stride, HAS_RESIDUAL)
        places = rows[:, None] * K + cols[None, :]
        if HAS_RESIDUAL:
            tl.store(hidden + places, value.to(hidden.dtype.element_ty), mask=mask)
        factor = tl.load(weight + cols, mask=column_mask, other=0.0).to(tl.float32)
        scaled = (value * scale[:, None]).to(y.dtype.element_ty).to(tl.float32)
        normed = (scaled * factor[None, :]).to(y.dtype.element_ty)
        tl.store(y + places, normed, mask=mask)
        if SEGMENTS > 0:
            if SLICE != BLOCK_C:
                block = load_a(a, cols, column_mask, K, SEGMENTS * R, BLOCK_W)
            acc = accumulate_codes(acc, normed, block)
    if SEGMENTS > 0:
        finish_codes(
            acc,
            rows,
            row_mask,
            row_count,
            tile,
            part,
            w1,
            b1,
            w2,
            b2,
            gated,
            partials,
            arrivals,
            codes,
            SEGMENTS,
            R,
            BLOCK_W,
            H,
            BLOCK_H,
            SLICES,
            GATED,
        )


def launch(
    x: Tensor,
    weight: Tensor,
    eps: float,
    residual: Tensor | None = None,
    compensator: GpuCompensator | None = None,
    workspace: CodeWorkspace | None = None,
    *,
    tile_rows: int | None = None,
) -> Normed:
    """The law of :func:`kernels.rms_norm.reference.rms_norm` on the device of ``x``.

    Args:
        x: ``(M, K)``, rows contiguous, M >= 0.
        weight: ``(K,)`` of the same type.
        eps: Added to the mean square.
        residual: ``(M, K)`` of the same type, rows contiguous.
        compensator: Of the product that reads the norm.
        workspace: Needed with a compensator.
        tile_rows: 1 or 16 rows a program; ``None`` = by M.

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
    if tile_rows not in (None, 1, 16):
        raise ValueError(f"tile_rows is {tile_rows}; it must be 1, 16 or None")
    tile = tile_rows or (1 if compensator is None or rows <= SMALL_BATCH else 16)
    width = columns
    if compensator is not None:
        width = slice_columns(compensator.code_width) if tile == 1 else 1024
    launched = code_launch(x, columns, tile, width, compensator, workspace)
    y = torch.empty(rows, columns, dtype=x.dtype, device=x.device)
    hidden = x if residual is None else torch.empty_like(y)
    if rows:
        rms_norm_kernel[(-(-rows // tile), launched.constants["SLICES"])](
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
            **blocks(columns, tile, width if compensator is not None else None),
            **launched.constants,
            **early_start(rms_norm_kernel, x.device),
        )
    return Normed(y=y, hidden=hidden, codes=launched.output)


def blocks(columns: int, tile_rows: int, width: int | None) -> dict[str, int]:
    """Block sizes and warps for a launch; they depend on nothing that changes from batch to batch."""
    whole = min(power_of_two(columns), 4096 if tile_rows == 1 else 256)
    if width is None:
        step, width = whole, -(-columns // whole) * whole
    else:
        step = width if tile_rows == 1 else 64
    return {
        "TILE_ROWS": tile_rows,
        "BLOCK_K": whole,
        "BLOCK_C": step,
        "SLICE": width,
        "num_warps": 8 if whole >= 2048 else 4,
    }
