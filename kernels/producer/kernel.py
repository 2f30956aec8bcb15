# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,no-any-return"
# Triton's language has no types that a checker knows.
"""Device functions that producers share: partial codes, and with gates their sum and the gate.

Programs of one row tile each hold the codes of a slice of the columns. Without gates each stores its part,
and the product that reads them adds: nothing waits. Gates need the sum: then each program publishes its
part and counts itself; the last one adds all parts in the order of the slices, so that the sum does not
depend on who came last, applies the gate, and sets the counter back to zero, so that a replayed graph
starts clean.
"""

import triton
import triton.language as tl


@triton.jit
def load_a(a, cols, column_mask, K: tl.constexpr, WIDTH: tl.constexpr, BLOCK_W: tl.constexpr):
    """(BLOCK_W, columns) of A: a constant, which may be read before the kernel in front has ended."""
    places = tl.arange(0, BLOCK_W)
    mask = (places < WIDTH)[:, None] & column_mask[None, :]
    return tl.load(a + places[:, None] * K + cols[None, :], mask=mask, other=0.0)


@triton.jit
def zero_codes(TILE_ROWS: tl.constexpr, BLOCK_W: tl.constexpr, BLOCK_C: tl.constexpr):
    """The accumulator of :func:`accumulate_codes`."""
    if TILE_ROWS == 1:
        acc = tl.zeros((BLOCK_W, BLOCK_C), tl.float32)
    else:
        acc = tl.zeros((TILE_ROWS, BLOCK_W), tl.float32)
    return acc


@triton.jit
def accumulate_codes(acc, x, block):
    """Adds ``x`` (tile rows, columns) times the same columns of A.

    One row goes through ordinary registers, ``acc`` (BLOCK_W, columns); more rows go through tensor cores,
    ``acc`` (tile rows, BLOCK_W).
    """
    if x.shape[0] == 1:
        acc += block.to(tl.float32) * x.to(tl.float32)
    else:
        acc = tl.dot(x, tl.trans(block), acc, input_precision="ieee")
    return acc


@triton.jit
def finish_codes(
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
    SEGMENTS: tl.constexpr,
    R: tl.constexpr,
    BLOCK_W: tl.constexpr,
    H: tl.constexpr,
    BLOCK_H: tl.constexpr,
    SLICES: tl.constexpr,
    GATED: tl.constexpr,
):
    """Stores this program's part in ``codes`` (SLICES, rows, WIDTH); gated: the last program of the tile
    writes the gated codes (1, rows, WIDTH)."""
    WIDTH: tl.constexpr = SEGMENTS * R
    if rows.shape[0] == 1:
        own = tl.sum(acc, 1)[None, :]  # (1, BLOCK_W)
    else:
        own = acc
    places = tl.arange(0, BLOCK_W)
    within = (places < WIDTH)[None, :]
    if GATED:
        tl.store(partials + (rows[:, None] * SLICES + part) * WIDTH + places[None, :], own, mask=within)
        # Without the barrier the counter may be seen before the stores of this program's other warps.
        tl.debug_barrier()
        arrived = tl.atomic_add(arrivals + tile, 1, sem="acq_rel", scope="gpu")
        if arrived == SLICES - 1:
            for segment in range(SEGMENTS):
                ranks = segment * R + tl.arange(0, R)
                total = tl.zeros((rows.shape[0], R), tl.float32)
                for index in tl.static_range(SLICES):
                    offsets = (rows[:, None] * SLICES + index) * WIDTH + ranks[None, :]
                    total += tl.load(partials + offsets, cache_modifier=".cg")
                total *= _gate(total, segment, w1, b1, w2, b2, gated, R, H, BLOCK_H)
                tl.store(codes + rows[:, None] * WIDTH + ranks[None, :], total, mask=row_mask[:, None])
            tl.store(arrivals + tile, 0)
    else:
        at = codes + (part * row_count.to(tl.int64) + rows)[:, None] * WIDTH + places[None, :]
        tl.store(at, own, mask=row_mask[:, None] & within)


@triton.jit
def _gate(code, segment, w1, b1, w2, b2, gated, R: tl.constexpr, H: tl.constexpr, BLOCK_H: tl.constexpr):
    """``2 sigmoid(W2 silu(W1 clamp(code) + b1) + b2)``, (tile rows, R); 1 for a static projection."""
    ranks = tl.arange(0, R)
    limited = tl.minimum(tl.maximum(code, -8.0), 8.0)
    logits = tl.zeros_like(code) + tl.load(b2 + segment * R + ranks)[None, :]
    for start in range(0, H, BLOCK_H):
        units = start + tl.arange(0, BLOCK_H)
        first = tl.load(w1 + (segment * H + units[:, None]) * R + ranks[None, :])
        second = tl.load(w2 + (segment * R + ranks[None, :]) * H + units[:, None])
        hidden = tl.sum(first[None, :, :] * limited[:, None, :], 2)  # (tile rows, BLOCK_H)
        hidden += tl.load(b1 + segment * H + units)[None, :]
        hidden *= tl.sigmoid(hidden)
        logits += tl.sum(second[None, :, :] * hidden[:, :, None], 1)
    return tl.where(tl.load(gated + segment) != 0, 2.0 * tl.sigmoid(logits), 1.0)
