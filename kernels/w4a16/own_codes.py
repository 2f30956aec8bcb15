# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,no-any-return"
# Triton's language has no types that a checker knows.
"""Codes of compensators in the product's own launch: computed by its first programs, awaited by the others.

Memory of a launch, behind the counters of its tiles: an arrival counter for each 16 rows, one of the tiles
that have used the codes, and the codes (M, S R) as bits, of which zero means "not written yet". All are zero
before and after.
"""

import triton
import triton.language as tl

from kernels.producer.kernel import load_a

GROUP_ROWS = tl.constexpr(16)
"""Rows of a tensor core, and of one program's codes."""
_PATIENCE = tl.constexpr(1 << 20)  # polls, each most of a microsecond


@triton.jit
def as_operand(codes, DTYPE: tl.constexpr):
    """Codes in the compute type."""
    if tl.float16 == DTYPE:  # 0 times an overflow would be NaN
        codes = tl.where(codes == codes, tl.clamp(codes, -65504.0, 65504.0), codes)
    return codes.to(DTYPE)


@triton.jit
def code_program(
    x, a, partials, counters, program, M,
    K: tl.constexpr, WIDTH: tl.constexpr, BLOCK_W: tl.constexpr, SLICE: tl.constexpr, BLOCK_C: tl.constexpr,
    SLICES: tl.constexpr, ASM: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Partial codes ``x Aᵀ`` of 16 rows and one slice of the columns; the last slice to arrive adds them.

    Takes the steps of :mod:`kernels.producer.kernel`, so that the bits are the same.
    """
    part, group = program % SLICES, program // SLICES
    rows, places = group * GROUP_ROWS + tl.arange(0, GROUP_ROWS), tl.arange(0, BLOCK_W)
    if PDL:
        tl.extra.cuda.gdc_wait()
    own = tl.zeros((GROUP_ROWS, BLOCK_W), tl.float32)
    for first in range(part * SLICE, part * SLICE + SLICE, BLOCK_C):
        columns = first + tl.arange(0, BLOCK_C)
        mask = (rows < M)[:, None] & (columns < K)[None, :]
        value = tl.load(x + rows.to(tl.int64)[:, None] * K + columns[None, :], mask=mask, other=0.0)
        block = load_a(a, first, K, WIDTH, BLOCK_C, BLOCK_W)
        if not ASM:  # the interpreter has no bfloat16 arithmetic
            value, block = value.to(tl.float32), block.to(tl.float32)
        own = tl.dot(value, block, own, input_precision="ieee")
    at = rows[:, None] * WIDTH + places[None, :]
    mask = (rows < M)[:, None] & (places < WIDTH)[None, :]
    tl.store(partials + part * M * WIDTH + at, own, mask=mask)
    tl.debug_barrier()  # Triton 3.6 puts none before an atomic that releases
    if tl.atomic_add(counters + group, 1, sem="acq_rel", scope="gpu") == SLICES - 1:
        total = tl.load(partials + at, mask=mask, other=0.0, cache_modifier=".cg")
        for each in tl.static_range(1, SLICES):
            total += tl.load(partials + each * M * WIDTH + at, mask=mask, other=0.0, cache_modifier=".cg")
        bits = tl.where(total == 0.0, -0.0, total).to(tl.int32, bitcast=True)
        tl.store(counters + tl.cdiv(M, GROUP_ROWS) + 1 + at, bits, mask=mask)
        tl.store(counters + group, 0)


@triton.jit
def awaited_codes(counters, rows, live, segment, M, DTYPE: tl.constexpr, R: tl.constexpr, S: tl.constexpr):
    """zgᵀ (R, BM) of one projection in the compute type, as soon as it is written.

    A wait that does not end leaves NaN.
    """
    at = rows[None, :] * (S * R) + (segment * R + tl.arange(0, R))[:, None]
    at = counters + tl.cdiv(M, GROUP_ROWS) + 1 + at
    bits = tl.load(at, mask=live, other=1, volatile=True)
    tries = 0
    while (tl.min(tl.min(tl.where(bits == 0, 0, 1), 1), 0) == 0) & (tries < _PATIENCE):
        bits = tl.load(at, mask=live, other=1, volatile=True)
        tries += 1
    codes = tl.where(bits == 0, float("nan"), bits.to(tl.float32, bitcast=True))
    return as_operand(tl.where(live, codes, 0.0), DTYPE)


@triton.jit
def forget_codes(counters, M, WIDTH: tl.constexpr, BLOCK_W: tl.constexpr, TILES):
    """Counts a tile that has used the codes; after the last one all is zero again."""
    groups = tl.cdiv(M, GROUP_ROWS)
    tl.debug_barrier()  # every warp has read them
    if tl.atomic_add(counters + groups, 1, sem="acq_rel", scope="gpu") == TILES - 1:
        places = tl.arange(0, BLOCK_W)
        for group in range(groups):
            rows = group * GROUP_ROWS + tl.arange(0, GROUP_ROWS)
            at = counters + groups + 1 + rows[:, None] * WIDTH + places[None, :]
            zeros = tl.zeros((GROUP_ROWS, BLOCK_W), tl.int32)
            tl.store(at, zeros, mask=(rows < M)[:, None] & (places < WIDTH)[None, :])
        tl.store(counters + groups, 0)
