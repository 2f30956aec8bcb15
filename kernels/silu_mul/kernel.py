# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,no-any-return"
# Triton's language has no types that a checker knows.
"""Gated activation with codes in one launch.

A program takes a tile of rows and a slice of the columns; columns do not depend on each other, so only the
codes have anything to add up. One row a program up to :data:`SMALL_BATCH` rows, else 16 that share A. Without
codes both forms give the same bits; with codes their last bits may differ, so ``tile_rows`` can be pinned.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.compensator.layout import GpuCompensator
from kernels.overlap import early_start
from kernels.producer.kernel import accumulate_codes, finish_codes, load_a, zero_codes
from kernels.producer.workspace import CodeWorkspace, code_launch, slice_columns
from kernels.silu_mul.reference import Activated
from kernels.tensor_checks import FLOATS, require

SMALL_BATCH = 64
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
    SLICE: tl.constexpr,
    SEGMENTS: tl.constexpr,
    R: tl.constexpr,
    BLOCK_W: tl.constexpr,
    H: tl.constexpr,
    BLOCK_H: tl.constexpr,
    SLICES: tl.constexpr,
    GATED: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Grid ``(row tiles, slices)``; BLOCK_C columns a step."""
    tile, part = tl.program_id(0), tl.program_id(1)
    rows = tile.to(tl.int64) * TILE_ROWS + tl.arange(0, TILE_ROWS)
    row_mask = rows < row_count
    if SEGMENTS > 0 and SLICE == BLOCK_C:  # asked for first, since it comes from furthest away
        own = part * SLICE + tl.arange(0, BLOCK_C)
        block = load_a(a, own, own < K, K, SEGMENTS * R, BLOCK_W)
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    acc = zero_codes(TILE_ROWS, BLOCK_W, BLOCK_C)
    for start in range(0, SLICE, BLOCK_C):
        cols = part * SLICE + start + tl.arange(0, BLOCK_C)
        column_mask = cols < K
        mask = row_mask[:, None] & column_mask[None, :]
        source = gate_up + rows[:, None] * row_stride + cols[None, :]
        gate = tl.load(source, mask=mask, other=0.0).to(tl.float32)
        up = tl.load(source + K, mask=mask, other=0.0).to(tl.float32)
        activated = (gate / (1.0 + tl.exp(-gate))).to(y.dtype.element_ty).to(tl.float32)
        value = (activated * up).to(y.dtype.element_ty)
        tl.store(y + rows[:, None] * K + cols[None, :], value, mask=mask)
        if SEGMENTS > 0:
            if SLICE != BLOCK_C:
                block = load_a(a, cols, column_mask, K, SEGMENTS * R, BLOCK_W)
            acc = accumulate_codes(acc, value, block)
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
    gate_up: Tensor,
    compensator: GpuCompensator | None = None,
    workspace: CodeWorkspace | None = None,
    *,
    tile_rows: int | None = None,
) -> Activated:
    """The law of :func:`kernels.silu_mul.reference.silu_mul` on the device of ``gate_up``.

    Args:
        gate_up: ``(M, 2 K)``, rows contiguous, M >= 0.
        compensator: Of the product that reads the result.
        workspace: Needed with a compensator.
        tile_rows: 1 or 16 rows a program; ``None`` = by M.

    Raises:
        ValueError: A tensor that the kernel would misread.
    """
    require(
        "gate_up", gate_up, shape=(None, None), dtypes=FLOATS, device=gate_up.device, rows_contiguous=True
    )
    rows, columns = gate_up.shape[0], gate_up.shape[1] // 2
    if gate_up.shape[1] % 2:
        raise ValueError(f"gate_up has {gate_up.shape[1]} columns; it must hold gate and up, equally wide")
    if tile_rows not in (None, 1, 16):
        raise ValueError(f"tile_rows is {tile_rows}; it must be 1, 16 or None")
    tile = tile_rows or (1 if compensator is None or rows <= SMALL_BATCH else 16)
    block = blocks(tile, 0 if compensator is None else compensator.code_width)
    launched = code_launch(gate_up, columns, tile, block["SLICE"], compensator, workspace)
    y = torch.empty(rows, columns, dtype=gate_up.dtype, device=gate_up.device)
    if y.numel():
        silu_mul_kernel[(-(-rows // tile), -(-columns // block["SLICE"]))](
            gate_up,
            y,
            *launched.tensors,
            rows,
            gate_up.stride(0),
            K=columns,
            **block,
            **launched.constants,
            **early_start(silu_mul_kernel, gate_up.device),
        )
    return Activated(y=y, codes=launched.output)


def blocks(tile_rows: int, code_width: int) -> dict[str, int]:
    """Block sizes and warps for a launch; they depend on nothing that changes from batch to batch."""
    if code_width:
        width = slice_columns(code_width) if tile_rows == 1 else 1024
        step, warps = (width, 8) if tile_rows == 1 else (64, 4)
        return {"TILE_ROWS": tile_rows, "BLOCK_C": step, "SLICE": width, "num_warps": warps}
    columns = max(_PLAIN_COLUMNS // tile_rows, 64)
    return {"TILE_ROWS": tile_rows, "BLOCK_C": columns, "SLICE": columns, "num_warps": 4}
