# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,no-any-return"
# Gluon, the layer of Triton with explicit layouts, has no types that a checker knows.
"""Codes of compensators in the kernel for few rows, by the protocol of :mod:`kernels.w4a16.own_codes`."""

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2

from kernels import tensor_checks
from kernels.w4a16 import own_codes, rooms

# Renamed after Triton 3.7.
copy = getattr(
    async_copy, "async_load" if "async_load" in async_copy.__all__ else "async_copy_global_to_shared"
)
power_of_two = gluon.constexpr_function(tensor_checks.power_of_two)
_COUNTER_WORDS = gl.constexpr(rooms.COUNTER_WORDS)  # of the only group of rows
_awaited, _as_words = gluon.jit(own_codes.awaited.fn), gluon.jit(own_codes.as_words.fn)


@gluon.constexpr_function
def rows_layout(rows, columns, warps):
    """Of a tile in rows, as wide accesses as the threads allow: at most 8 elements of a row."""
    width = max(1, min(8, columns, rows * columns // (32 * warps)))
    across = min(32, columns // width)
    return gl.BlockedLayout([1, width], [32 // across, across], [warps, 1], [1, 0])


@gluon.jit
def codes_operand(codes, DTYPE: gl.constexpr, OPERAND: gl.constexpr):
    """zgᵀ (R, BM) in the compute type, of codes (BM, R)."""
    if gl.float16 == DTYPE:  # 0 times an overflow would be NaN
        bounded = gl.minimum(gl.maximum(codes, -65504.0), 65504.0)
        codes = gl.where(codes == codes, bounded, codes)
    return gl.convert_layout(gl.permute(codes.to(DTYPE), [1, 0]), OPERAND)


@gluon.jit
def _code_places(segment, M, BM: gl.constexpr, R: gl.constexpr, S: gl.constexpr):
    """Places (BM, R) of one projection's codes in (M, S R), and which of them there are."""
    layout: gl.constexpr = rows_layout(BM, R, gl.num_warps())
    row = gl.arange(0, BM, gl.SliceLayout(1, layout))
    column = gl.arange(0, R, gl.SliceLayout(0, layout))
    places = row[:, None] * (S * R) + segment * R + column[None, :]
    return places, (row[:, None] < M) & (column[None, :] < R)


@gluon.jit
def given_codes(zg, segment, M, BM: gl.constexpr, R: gl.constexpr, S: gl.constexpr, P: gl.constexpr):
    """Codes (BM, R) of one projection: the sum of P partial ones, in rising order."""
    places, mask = _code_places(segment, M, BM, R, S)
    codes = gl.load(zg + places, mask=mask, other=0.0)
    for each in gl.static_range(1, P):
        codes += gl.load(zg + places + each * M * (S * R), mask=mask, other=0.0)
    return codes


@gluon.jit
def seen_codes(room, segment, M, BM: gl.constexpr, R: gl.constexpr, S: gl.constexpr):
    """What is written now of the codes (BM, R) of one projection, as words."""
    places, mask = _code_places(segment, M, BM, R, S)
    return gl.load(room + _COUNTER_WORDS + places, mask=mask, other=1, volatile=True)


@gluon.jit
def awaited_codes(room, seen, segment, M, BM: gl.constexpr, R: gl.constexpr, S: gl.constexpr):
    """Codes (BM, R) of one projection as soon as the first programs of this launch have written them."""
    places, mask = _code_places(segment, M, BM, R, S)
    return gl.where(mask, _awaited(room + _COUNTER_WORDS + places, seen), 0.0)


@gluon.jit
def _copy_columns(x, x_tile, first_column, M, K: gl.constexpr):
    """(16, columns) of ``x``; zeros where there are none."""
    layout: gl.constexpr = rows_layout(x_tile.shape[0], x_tile.shape[1], gl.num_warps())
    row = gl.arange(0, x_tile.shape[0], gl.SliceLayout(1, layout))
    column = first_column + gl.arange(0, x_tile.shape[1], gl.SliceLayout(0, layout))
    mask = (row < M)[:, None] & (column < K)[None, :]
    copy(x_tile, x + row[:, None] * K + column[None, :], mask=mask)


@gluon.jit
def _copy_down(a, a_tile, first_column, K: gl.constexpr, WIDTH: gl.constexpr):
    """(columns, WIDTH, filled up) of A; zeros where there are none."""
    layout: gl.constexpr = rows_layout(a_tile.shape[0], a_tile.shape[1], gl.num_warps())
    column = first_column + gl.arange(0, a_tile.shape[0], gl.SliceLayout(1, layout))
    place = gl.arange(0, a_tile.shape[1], gl.SliceLayout(0, layout))
    mask = (column < K)[:, None] & (place < WIDTH)[None, :]
    copy(a_tile, a + column[:, None] * WIDTH + place[None, :], mask=mask)


@gluon.jit
def code_program(
    x, a, partials, room, part, M,
    K: gl.constexpr, ROWS: gl.constexpr, WIDTH: gl.constexpr, BLOCK_W: gl.constexpr,
    BLOCK_C: gl.constexpr, STEPS: gl.constexpr, SLICES: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    """Partial codes ``x Aᵀ`` of one slice of the columns; the last slice to arrive adds them, of ROWS rows.

    Takes the steps of :mod:`kernels.producer.kernel`, so that the bits are the same.
    """
    WARPS: gl.constexpr = gl.num_warps()
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [1, WARPS], [16, 8])
    x_tile = gl.allocate_shared_memory(
        x.dtype.element_ty, [16, BLOCK_C], gl.SwizzledSharedLayout(8, 1, 8, [1, 0])
    )
    a_tile = gl.allocate_shared_memory(
        a.dtype.element_ty, [BLOCK_C, BLOCK_W], gl.SwizzledSharedLayout(8, 1, BLOCK_W // 8, [1, 0])
    )
    own = gl.zeros([16, BLOCK_W], gl.float32, SUMS)
    for step in gl.static_range(STEPS):
        first = (part * STEPS + step) * BLOCK_C
        if step > 0:
            tl.debug_barrier()  # what the step in front reads
        _copy_down(a, a_tile, first, K, WIDTH)
        if PDL and step == 0:
            tl.extra.cuda.gdc_wait()
        _copy_columns(x, x_tile, first, M, K)
        async_copy.commit_group()
        async_copy.wait_group(0)
        tl.debug_barrier()
        left = x_tile.load(gl.DotOperandLayout(0, SUMS, 2))
        own = mma_v2(left, a_tile.load(gl.DotOperandLayout(1, SUMS, 2)), own)
    row = gl.arange(0, 16, gl.SliceLayout(1, SUMS))
    place = gl.arange(0, BLOCK_W, gl.SliceLayout(0, SUMS))
    at = row[:, None] * WIDTH + place[None, :]
    mask = (row < M)[:, None] & (place < WIDTH)[None, :]
    gl.store(partials + part * M * WIDTH + at, own, mask=mask)
    tl.debug_barrier()  # none is put before an atomic that releases
    if gl.atomic_add(room, 1, sem="acq_rel", scope="gpu") == SLICES - 1:
        layout: gl.constexpr = rows_layout(ROWS, BLOCK_W, WARPS)
        sum_row = gl.arange(0, ROWS, gl.SliceLayout(1, layout))
        sum_place = gl.arange(0, BLOCK_W, gl.SliceLayout(0, layout))
        sum_at = sum_row[:, None] * WIDTH + sum_place[None, :]
        live = (sum_row < M)[:, None] & (sum_place < WIDTH)[None, :]
        total = gl.zeros([ROWS, BLOCK_W], gl.float32, layout)
        AT_ONCE: gl.constexpr = max(512 // BLOCK_W, 4)  # as many as find registers
        for first in range(0, SLICES, AT_ONCE):
            for each in gl.static_range(AT_ONCE):
                from_ = partials + (first + each) * M * WIDTH + sum_at
                there = live & (first + each < SLICES)
                total += gl.load(from_, mask=there, other=0.0, cache_modifier=".cg")
        gl.store(room + _COUNTER_WORDS + sum_at, _as_words(total), mask=live)
