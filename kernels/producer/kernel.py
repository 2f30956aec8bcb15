# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,no-any-return"
# Triton's language has no types that a checker knows.
"""Device functions that producers share: partial codes, and with gates their sum and the gate.

Columns are cut into slices. Without gates the codes of each slice are stored, and the product that reads
them adds: nothing waits. Gates need the sum: then each program
publishes its part and counts itself; the last one adds all parts in the order of the slices, so that the sum
does not depend on who came last, applies the gate, and sets the counter back to zero, so that a replayed
graph starts clean.

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
def slice_codes(x, block):
    """float32 (BLOCK_W,): ``x`` (columns,) times its slice of A. Codes lie side by side in a thread, columns
    mostly below each other, so that few sums cross threads."""
    return tl.sum(block.to(tl.float32) * x.to(tl.float32)[:, None], 0)


@triton.jit
def finish_codes(
    own,
    row,
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
    SEGMENTS: tl.constexpr,
    R: tl.constexpr,
    BLOCK_W: tl.constexpr,
    H: tl.constexpr,
    BLOCK_H: tl.constexpr,
    SLICES: tl.constexpr,
    GATED: tl.constexpr,
):
    """Stores a slice's part ``own`` (BLOCK_W,) in ``codes`` (SLICES, rows, WIDTH); gated: the row's last
    program writes its gated codes (1, rows, WIDTH)."""
    WIDTH: tl.constexpr = SEGMENTS * R
    places = tl.arange(0, BLOCK_W)
    if GATED:
        tl.store(partials + (row * SLICES + part) * WIDTH + places, own, mask=places < WIDTH)
        # Without the barrier the counter may be seen before the stores of this program's other warps.
        tl.debug_barrier()
        if tl.atomic_add(arrivals + row, 1, sem="acq_rel", scope="gpu") == SLICES - 1:
            for segment in range(SEGMENTS):
                ranks = segment * R + tl.arange(0, R)
                total = tl.zeros((R,), tl.float32)
                for index in tl.static_range(SLICES):
                    total += tl.load(partials + (row * SLICES + index) * WIDTH + ranks, cache_modifier=".cg")
                total *= _gate(total, segment, w1, b1, w2, b2, gated, R, H, BLOCK_H)
                tl.store(codes + row * WIDTH + ranks, total)
            tl.store(arrivals + row, 0)
    else:
        width = tl.where((row < row_count) & (part < SLICES), WIDTH, 0)
        tl.store(codes + (part * row_count.to(tl.int64) + row) * WIDTH + places, own, mask=places < width)


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
