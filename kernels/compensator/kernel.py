# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,no-any-return"
# Triton's language has no types that a checker knows.
"""Gated codes ``zg = gate(A x) * A x`` on the GPU, as a kernel of their own.

Used where nothing in front of the product can fold them in; the same steps as there.
"""

import triton
import triton.language as tl

from kernels.producer.kernel import add_codes, finish_codes, load_a


@triton.jit(do_not_specialize=["row_count"])  # one compilation for every row count
def codes_kernel(
    x,
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
    """Grid ``(row tiles, slices / RUN)``; x (row_count, K), STEPS times BLOCK_C columns a slice."""
    first_row, first_part = tl.program_id(0).to(tl.int64) * TILE_ROWS, tl.program_id(1) * RUN
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
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
            if RUN * STEPS > 1:
                block = load_a(a, first_col, K, SEGMENTS * R, BLOCK_C, BLOCK_W)
            mask = (rows < row_count)[:, None] & (cols < K)[None, :]
            value = tl.load(x + rows[:, None] * K + cols[None, :], mask=mask, other=0.0)
            own = add_codes(own, value, block, ASM)
        finish_codes(
            own, first_row, row_count, part,
            w1, b1, w2, b2, gated, partials, arrivals, codes,
            TILE_ROWS, SEGMENTS, R, BLOCK_W, H, BLOCK_H, SLICES, GATED,
        )  # fmt: skip
