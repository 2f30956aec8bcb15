# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,no-any-return"
# Gluon, the layer of Triton with explicit layouts, has no types that a checker knows.
"""Codes of compensators in the kernel for few rows: computed by its first programs, awaited by the others."""

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2

from kernels import tensor_checks

# Renamed after Triton 3.7.
copy = getattr(
    async_copy, "async_load" if "async_load" in async_copy.__all__ else "async_copy_global_to_shared"
)
power_of_two = gluon.constexpr_function(tensor_checks.power_of_two)
_PATIENCE = gl.constexpr(1 << 20)  # polls, each most of a microsecond


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
def awaited_codes(totals, segment, M, BM: gl.constexpr, R: gl.constexpr, S: gl.constexpr):
    """Codes (BM, R) of one projection as soon as the first programs of this launch have written them.

    A place that holds zero bits is not written yet; a wait that does not end leaves NaN. Each place is one
    thread's: copies of it could see it written or not.
    """
    places, mask = _code_places(segment, M, BM, R, S)
    bits = gl.load(totals + places, mask=mask, other=1, volatile=True)
    tries = 0
    while (gl.min(gl.min(gl.where(bits == 0, 0, 1), 1), 0) == 0) & (tries < _PATIENCE):
        bits = gl.load(totals + places, mask=mask, other=1, volatile=True)
        tries += 1
    codes = gl.where(bits == 0, float("nan"), bits.to(gl.float32, bitcast=True))
    return gl.where(mask, codes, 0.0)


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
    x, a, partials, counters, totals, part, M,
    K: gl.constexpr, WIDTH: gl.constexpr, BLOCK_W: gl.constexpr, BLOCK_C: gl.constexpr, STEPS: gl.constexpr,
    SLICES: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    """Partial codes ``x Aᵀ`` of one slice of the columns; then the sums of some rows, as soon as all parts
    are there. Takes the steps of :mod:`kernels.producer.kernel`, so that the bits are the same."""
    WARPS: gl.constexpr = gl.num_warps()
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [1, WARPS], [16, 8])
    ROWS: gl.constexpr = gl.SwizzledSharedLayout(8, 1, 8, [1, 0])
    x_tile = gl.allocate_shared_memory(x.dtype.element_ty, [16, BLOCK_C], ROWS)
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
    at = partials + (part * M + row)[:, None] * WIDTH + place[None, :]
    gl.store(at, own, mask=(row < M)[:, None] & (place < WIDTH)[None, :])
    tl.debug_barrier()  # none is put before an atomic that releases
    arrived = gl.atomic_add(counters, 1, sem="acq_rel", scope="gpu") + 1
    if part < M:
        tries = 0
        while (arrived < SLICES) & (tries < _PATIENCE):
            arrived = gl.atomic_add(counters, 0, sem="acquire", scope="gpu")
            tries += 1
        if arrived >= SLICES:
            line: gl.constexpr = gl.BlockedLayout([1], [32], [WARPS], [0])
            places = gl.arange(0, BLOCK_W, line)
            for index in range(part, M, SLICES):
                from_ = partials + index * WIDTH + places
                total = gl.load(from_, mask=places < WIDTH, other=0.0, cache_modifier=".cg")
                for each in gl.static_range(1, SLICES):
                    total += gl.load(
                        from_ + each * M * WIDTH, mask=places < WIDTH, other=0.0, cache_modifier=".cg"
                    )
                bits = gl.where(total == 0.0, -0.0, total).to(gl.int32, bitcast=True)
                gl.store(totals + index * WIDTH + places, bits, mask=places < WIDTH)


@gluon.jit
def forget_codes(counters, totals, M, WIDTH: gl.constexpr, TILES: gl.constexpr):
    """Counts a tile that has used the codes; after the last one all is zero again."""
    tl.debug_barrier()  # every warp has read them
    if gl.atomic_add(counters + 1, 1, sem="acq_rel", scope="gpu") == TILES - 1:
        layout: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
        places = gl.arange(0, power_of_two(WIDTH), layout)
        for row in range(M):
            gl.store(totals + row * WIDTH + places, 0, mask=places < WIDTH)
        gl.store(counters, 0)
        gl.store(counters + 1, 0)
