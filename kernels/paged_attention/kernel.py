# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,no-any-return"
# Triton's language has no types that a checker knows.
"""Attention of new tokens over paged context, with equal bits for a row whatever else is in the batch.

The query heads that share a key head and the new rows of a sequence make one tile, so that context is read
once for all of them. Context is cut into pieces that start at multiples of ``piece_tokens``. Each yields its
largest score, sum of weights and weighted sum from scratch; pieces are merged from first to last. So what a
row goes through depends on its own position only:

* keys that a row must not see get weight zero and leave its sums as they are, bit by bit;
* rows of a tile do not mix in a matrix product;
* merging is the same few operations, whether one program walks all pieces or another launch merges them.

Few long contexts want many programs (``attend_piece`` and ``merge_pieces``); many rows, as in a prompt, fill
the GPU anyway and want no partial results in memory (``attend_whole``).
"""

import triton
import triton.language as tl

from kernels.producer.kernel import add_codes, finish_codes, load_a


@triton.jit
def _tile(
    query,
    row_starts,
    lengths,
    query_stride,
    window,
    H: tl.constexpr,
    KV: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    TILE_ROWS: tl.constexpr,
):
    """The rows of this program: sequence, key head, packed rows, and the keys that they may see.

    Returns:
        ``(sequence, kv_head, rows, heads, positions, valid, first_key, last_key, queries)``; without rows,
        ``last_key`` < ``first_key``.
    """
    GROUP: tl.constexpr = H // KV
    sequence, kv_head = tl.program_id(2) // KV, tl.program_id(2) % KV
    first_row = tl.load(row_starts + sequence)
    count = tl.load(row_starts + sequence + 1) - first_row
    start = tl.load(lengths + sequence) - count
    packed = tl.program_id(0) * TILE_ROWS + tl.arange(0, TILE_ROWS)
    valid = packed < count * GROUP
    rows = (first_row + packed // GROUP).to(tl.int64)
    heads = kv_head * GROUP + packed % GROUP
    positions = start + packed // GROUP
    lowest = start + tl.program_id(0) * TILE_ROWS // GROUP
    first_key = tl.maximum(lowest + 1 - window, 0)
    highest = start + (tl.program_id(0) * TILE_ROWS + TILE_ROWS - 1) // GROUP
    last_key = tl.where(
        tl.program_id(0) * TILE_ROWS < count * GROUP, tl.minimum(highest, start + count - 1), -1
    )
    dims = tl.arange(0, BLOCK_D)
    queries = tl.load(
        query + rows[:, None] * query_stride + heads[:, None] * D + dims[None, :],
        mask=valid[:, None] & (dims < D)[None, :],
        other=0.0,
    )
    return sequence, kv_head, rows, heads, positions, valid, first_key, last_key, queries


@triton.jit
def _order_copies(FENCE: tl.constexpr):
    """Makes asynchronous copies visible to the tensor cores, which Triton 3.6 forgets for wgmma."""
    if FENCE:
        tl.inline_asm_elementwise(
            "fence.proxy.async.shared::cta; mov.u32 $0, 0;", "=r", [], dtype=tl.int32, is_pure=False, pack=1
        )


@triton.jit
def _attend(
    queries,
    positions,
    cache,
    pages,
    kv_head,
    piece,
    first_key,
    last_key,
    scale,
    window,
    KV: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    PIECE: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    FENCE: tl.constexpr,
):
    """One piece from scratch: largest score and sum of weights (rows,), weighted sum (rows, BLOCK_D)."""
    dims = tl.arange(0, BLOCK_D)
    largest = tl.full((queries.shape[0],), float("-inf"), tl.float32)
    total = tl.zeros((queries.shape[0],), tl.float32)
    weighted = tl.zeros((queries.shape[0], BLOCK_D), tl.float32)
    begin = tl.maximum(piece * PIECE, first_key // BLOCK_KEYS * BLOCK_KEYS)
    end = tl.minimum((piece + 1) * PIECE, last_key + 1)
    for block in range(begin, end, BLOCK_KEYS):
        tokens = block + tl.arange(0, BLOCK_KEYS)
        present = tokens <= last_key
        page = tl.load(pages + tokens // PAGE_SIZE, mask=present, other=0).to(tl.int64)
        slots = page * PAGE_SIZE + tokens % PAGE_SIZE
        source = cache + (slots * (2 * KV) + kv_head)[:, None] * D + dims[None, :]
        mask = present[:, None] & (dims < D)[None, :]
        keys = tl.load(source, mask=mask, other=0.0)
        values = tl.load(source + KV * D, mask=mask, other=0.0)
        _order_copies(FENCE)
        scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") * scale
        seen = (tokens[None, :] <= positions[:, None]) & (tokens[None, :] > positions[:, None] - window)
        scores = tl.where(seen, scores, float("-inf"))
        new_largest = tl.maximum(largest, tl.max(scores, 1))
        # A row that has seen nothing yet subtracts zero: infinity minus infinity is no number.
        base = tl.where(new_largest == float("-inf"), 0.0, new_largest)
        kept = tl.exp2(largest - base)
        weights = tl.exp2(scores - base[:, None])
        total = total * kept + tl.sum(weights, 1)
        _order_copies(FENCE)
        weighted = tl.dot(weights.to(values.dtype), values, weighted * kept[:, None], input_precision="ieee")
        largest = new_largest
    return largest, total, weighted


@triton.jit
def _factors(largest, next_largest):
    """The new largest score, and by what the sums so far and those of the next piece are multiplied."""
    new_largest = tl.maximum(largest, next_largest)
    base = tl.where(new_largest == float("-inf"), 0.0, new_largest)
    return new_largest, tl.exp2(largest - base), tl.exp2(next_largest - base)


@triton.jit
def _merged(value, kept, next_value, added):
    """One sum after the next piece, elementwise.

    The fused multiply-add is spelled out, so that no compiler chooses another rounding in one of the kernels.
    """
    return tl.fma(value, tl.broadcast_to(kept, value.shape), next_value * added)


@triton.jit(do_not_specialize=["pieces", "window"])  # one compilation for every length
def attend_piece(
    query,
    cache,
    page_table,
    row_starts,
    lengths,
    largest_parts,
    total_parts,
    weighted_parts,
    query_stride,
    page_stride,
    scale,
    window,
    pieces,
    H: tl.constexpr,
    KV: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    PIECE: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    FENCE: tl.constexpr,
):
    """Grid ``(tiles, pieces, B KV)``; parts are ``(N, H, pieces)`` and ``(N, H, pieces, D)``."""
    sequence, kv_head, rows, heads, positions, valid, first_key, last_key, queries = _tile(
        query, row_starts, lengths, query_stride, window, H, KV, D, BLOCK_D, TILE_ROWS
    )
    piece = tl.program_id(1)
    if (piece * PIECE <= last_key) & ((piece + 1) * PIECE > first_key):
        largest, total, weighted = _attend(
            queries,
            positions,
            cache,
            page_table + sequence.to(tl.int64) * page_stride,
            kv_head,
            piece,
            first_key,
            last_key,
            scale,
            window,
            KV,
            D,
            BLOCK_D,
            PAGE_SIZE,
            PIECE,
            BLOCK_KEYS,
            FENCE,
        )
        dims = tl.arange(0, BLOCK_D)
        places = (rows * H + heads) * pieces + piece
        tl.store(largest_parts + places, largest, mask=valid)
        tl.store(total_parts + places, total, mask=valid)
        mask = valid[:, None] & (dims < D)[None, :]
        tl.store(weighted_parts + places[:, None] * D + dims[None, :], weighted, mask=mask)


@triton.jit(do_not_specialize=["window"])
def attend_whole(
    query,
    cache,
    page_table,
    row_starts,
    lengths,
    output,
    query_stride,
    page_stride,
    scale,
    window,
    H: tl.constexpr,
    KV: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    PIECE: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    FENCE: tl.constexpr,
):
    """Grid ``(tiles, 1, B KV)``; writes ``output (N, H D)``."""
    sequence, kv_head, rows, heads, positions, valid, first_key, last_key, queries = _tile(
        query, row_starts, lengths, query_stride, window, H, KV, D, BLOCK_D, TILE_ROWS
    )
    largest = tl.full((TILE_ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((TILE_ROWS,), tl.float32)
    weighted = tl.zeros((TILE_ROWS, BLOCK_D), tl.float32)
    for piece in range(first_key // PIECE, last_key // PIECE + 1):
        next_largest, next_total, next_weighted = _attend(
            queries,
            positions,
            cache,
            page_table + sequence.to(tl.int64) * page_stride,
            kv_head,
            piece,
            first_key,
            last_key,
            scale,
            window,
            KV,
            D,
            BLOCK_D,
            PAGE_SIZE,
            PIECE,
            BLOCK_KEYS,
            FENCE,
        )
        largest, kept, added = _factors(largest, next_largest)
        total = _merged(total, kept, next_total, added)
        weighted = _merged(weighted, kept[:, None], next_weighted, added[:, None])
    dims = tl.arange(0, BLOCK_D)
    mask = valid[:, None] & (dims < D)[None, :]
    value = (weighted / tl.where(total > 0, total, 1.0)[:, None]).to(output.dtype.element_ty)
    tl.store(output + (rows * H + heads)[:, None] * D + dims[None, :], value, mask=mask)


@triton.jit(do_not_specialize=["pieces", "window", "row_count"])
def merge_pieces(
    largest_parts,
    total_parts,
    weighted_parts,
    positions,
    output,
    a,
    w1,
    b1,
    w2,
    b2,
    gated,
    partials,
    arrivals,
    codes,
    window,
    pieces,
    row_count,
    HEAD_DIM: tl.constexpr,
    K: tl.constexpr,
    PIECE: tl.constexpr,
    BLOCK_C: tl.constexpr,
    STEPS: tl.constexpr,
    SEGMENTS: tl.constexpr,
    R: tl.constexpr,
    BLOCK_W: tl.constexpr,
    H: tl.constexpr,
    BLOCK_H: tl.constexpr,
    SLICES: tl.constexpr,
    GATED: tl.constexpr,
    ASM: tl.constexpr,
):
    """Grid ``(N, slices of the K output columns)``; H and the like are the codes', as in every producer."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    position = tl.load(positions + row)
    first_piece = tl.maximum(position + 1 - window, 0) // PIECE
    if SEGMENTS > 0:  # asked for first, since it comes from furthest away
        block = load_a(a, part * STEPS * BLOCK_C, K, SEGMENTS * R, BLOCK_C, BLOCK_W)
    own = tl.zeros((16, BLOCK_W), tl.float32)
    for step in range(STEPS):
        first_col = (part * STEPS + step) * BLOCK_C
        cols = first_col + tl.arange(0, BLOCK_C)
        column_mask = cols < K
        if SEGMENTS > 0 and STEPS > 1:
            block = load_a(a, first_col, K, SEGMENTS * R, BLOCK_C, BLOCK_W)
        places = (row * (K // HEAD_DIM) + cols // HEAD_DIM) * pieces
        largest = tl.full((BLOCK_C,), float("-inf"), tl.float32)
        total = tl.zeros((BLOCK_C,), tl.float32)
        weighted = tl.zeros((BLOCK_C,), tl.float32)
        # A row of no sequence has position -1 and merges nothing.
        for piece in range(first_piece, (position + PIECE) // PIECE):
            place = places + piece
            next_largest = tl.load(largest_parts + place, mask=column_mask, other=0.0)
            next_total = tl.load(total_parts + place, mask=column_mask, other=0.0)
            source = weighted_parts + place * HEAD_DIM + cols % HEAD_DIM
            largest, kept, added = _factors(largest, next_largest)
            total = _merged(total, kept, next_total, added)
            weighted = _merged(weighted, kept, tl.load(source, mask=column_mask, other=0.0), added)
        value = (weighted / tl.where(total > 0, total, 1.0)).to(output.dtype.element_ty)
        tl.store(output + row * K + cols, value, mask=column_mask)
        if SEGMENTS > 0:
            own = add_codes(own, value[None, :], block, ASM)
    if SEGMENTS > 0:
        finish_codes(
            own, row, row_count, part,
            w1, b1, w2, b2, gated, partials, arrivals, codes,
            1, SEGMENTS, R, BLOCK_W, H, BLOCK_H, SLICES, GATED,
        )  # fmt: skip
