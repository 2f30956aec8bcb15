# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,no-any-return"
# Triton's language has no types that a checker knows.
"""Device functions that producers share: partial codes, and with gates their sum and the gate.

Columns are cut into slices. Without gates the codes of each slice are stored, and the product that reads
them adds: nothing waits. Gates need the sum: then each program publishes its part and counts itself; the
last one adds all parts in the order of the slices, so that the sum does not depend on who came last, applies
the gate, and sets the counter back to zero, so that a replayed graph starts clean.

A slice is STEPS times BLOCK_C columns, more than one step only where a program could not hold its part of A.

A row takes the same steps alone and among others, whatever rows and slices a program covers.
"""

import triton
import triton.language as tl


@triton.jit
def load_a(a, first, K: tl.constexpr, WIDTH: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_W: tl.constexpr):
    """(BLOCK_C, BLOCK_W): rows ``[first, first + BLOCK_C)`` of ``GpuCompensator.down``.

    A constant, which may be read before the kernel in front has ended.
    """
    columns, places = first + tl.arange(0, BLOCK_C), tl.arange(0, BLOCK_W)
    mask = (columns < K)[:, None] & (places < WIDTH)[None, :]
    return tl.load(a + columns[:, None] * WIDTH + places[None, :], mask=mask, other=0.0)


@triton.jit
def add_codes(own, x, block, ASM: tl.constexpr):
    """float32 (16, BLOCK_W): ``own`` and ``x`` (rows, columns), 1 or 16 rows, times its part of A.

    A tensor core has 16 rows; of a single one all are copies, so that its bits are those it has among others.
    """
    if ASM:
        x, block = _settled(x), _settled(block)
    wide = tl.broadcast_to(x, (16, x.shape[1]))
    if not ASM:  # the interpreter has no bfloat16 arithmetic
        wide, block = wide.to(tl.float32), block.to(tl.float32)
    return tl.dot(wide, block, own, input_precision="ieee")


@triton.jit
def _settled(x):
    """``x``, here and once: the compiler would compute it again for each copy of a row, and would wait for A
    where it is asked for, before the kernel in front has ended."""
    if x.dtype == tl.float32:
        x = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x], dtype=x.dtype, is_pure=False, pack=1)
    else:
        x = tl.inline_asm_elementwise("mov.b16 $0, $1;", "=h,h", [x], dtype=x.dtype, is_pure=False, pack=1)
    return x


@triton.jit
def finish_codes(
    own,
    first_row,
    row_count,
    part,
    w1,
    b1,
    w2,
    b2,
    gated,
    partials,
    arrivals,
    codes,
    TILE_ROWS: tl.constexpr,
    SEGMENTS: tl.constexpr,
    R: tl.constexpr,
    BLOCK_W: tl.constexpr,
    H: tl.constexpr,
    BLOCK_H: tl.constexpr,
    SLICES: tl.constexpr,
    GATED: tl.constexpr,
):
    """Stores a slice's part ``own`` (16, BLOCK_W) in ``codes`` (SLICES, rows, WIDTH); gated, with one row a
    program: the row's last program writes its gated codes (1, rows, WIDTH)."""
    WIDTH: tl.constexpr = SEGMENTS * R
    tile, places = tl.arange(0, 16), tl.arange(0, BLOCK_W)
    if GATED:
        single = tl.sum(tl.where((tile == 0)[:, None], own, 0.0), 0)
        tl.store(partials + (first_row * SLICES + part) * WIDTH + places, single, mask=places < WIDTH)
        # Without the barrier the counter may be seen before the stores of this program's other warps.
        tl.debug_barrier()
        if tl.atomic_add(arrivals + first_row, 1, sem="acq_rel", scope="gpu") == SLICES - 1:
            for segment in range(SEGMENTS):
                ranks = segment * R + tl.arange(0, R)
                total = tl.zeros((R,), tl.float32)
                for index in tl.static_range(SLICES):
                    at = partials + (first_row * SLICES + index) * WIDTH + ranks
                    total += tl.load(at, cache_modifier=".cg")
                total *= _gate(total, segment, w1, b1, w2, b2, gated, R, H, BLOCK_H)
                tl.store(codes + first_row * WIDTH + ranks, total)
            tl.store(arrivals + first_row, 0)
    else:
        rows = tl.where(part < SLICES, tl.minimum(row_count - first_row, TILE_ROWS), 0)
        at = codes + (part * row_count.to(tl.int64) + first_row + tile)[:, None] * WIDTH + places[None, :]
        tl.store(at, own, mask=(tile < rows)[:, None] & (places < WIDTH)[None, :])


@triton.jit
def _gate(code, segment, w1, b1, w2, b2, gated, R: tl.constexpr, H: tl.constexpr, BLOCK_H: tl.constexpr):
    """``2 sigmoid(W2 silu(W1 clamp(code) + b1) + b2)``, (R,); 1 for a static projection."""
    ranks = tl.arange(0, R)
    limited = tl.minimum(tl.maximum(code, -8.0), 8.0)
    logits = tl.load(b2 + segment * R + ranks)
    for start in range(0, H, BLOCK_H):
        units = start + tl.arange(0, BLOCK_H)
        first = tl.load(w1 + (segment * H + units[:, None]) * R + ranks[None, :])
        second = tl.load(w2 + (segment * R + ranks[None, :]) * H + units[:, None])
        hidden = tl.sum(first * limited[None, :], 1) + tl.load(b1 + segment * H + units)
        hidden *= tl.sigmoid(hidden)
        logits += tl.sum(second * hidden[:, None], 0)
    return tl.where(tl.load(gated + segment) != 0, 2.0 * tl.sigmoid(logits), 1.0)
