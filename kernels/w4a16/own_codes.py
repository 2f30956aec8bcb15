# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,no-any-return"
# Triton's language has no types that a checker knows.
"""Codes of compensators in the product's own launch: computed by its first programs, awaited by the others.

They meet in a room that the caller has filled with zeros (:mod:`kernels.w4a16.rooms`): an arrival counter for
each 16 rows, side by side, then the codes (M, S R) as bits, of which zero means "not written yet". Waits end
because a GPU starts programs in the order of their numbers, and the first ones wait for nobody.
"""

import triton
import triton.language as tl

from kernels.producer.kernel import load_a
from kernels.w4a16 import rooms

GROUP_ROWS, _COUNTER_WORDS = tl.constexpr(rooms.GROUP_ROWS), tl.constexpr(rooms.COUNTER_WORDS)


@triton.jit
def prefetch(lines):
    """Asks for lines of constants, so that they are in the L2 when they are read."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [lines], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def as_operand(codes, DTYPE: tl.constexpr):
    """Codes in the compute type."""
    if tl.float16 == DTYPE:  # 0 times an overflow would be NaN
        codes = tl.where(codes == codes, tl.clamp(codes, -65504.0, 65504.0), codes)
    return codes.to(DTYPE)


@triton.jit
def as_words(codes):
    """Bits of codes that are not zero: of 0 those of -0, which the product cannot tell from it."""
    bits = codes.to(tl.int32, bitcast=True)
    return tl.where(bits == 0, -0x80000000, bits)  # as a float, -0.0 would become 0.0


@triton.jit
def awaited(words, seen):
    """The words at these places, each as soon as it is not zero; NaN where a wait does not end.

    ``seen``: what was there before, so that nobody who sees a word written waits for it again.
    """
    words = tl.inline_asm_elementwise(
        asm="""{
        .reg .pred again;
        .reg .b32 tries;
        mov.b32 $0, $2;
        mov.b32 tries, 0;
        setp.ne.b32 again, $0, 0;
        @again bra written;
        wait:
        ld.relaxed.gpu.global.b32 $0, [$1];
        add.u32 tries, tries, 1;
        setp.lt.u32 again, tries, 0x100000;
        setp.eq.and.b32 again, $0, 0, again;
        @again bra wait;
        written:
        }""",
        constraints="=&r,l,r",
        args=[words, seen],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
    return tl.where(words == 0, float("nan"), words.to(tl.float32, bitcast=True))


@triton.jit
def _codes_of(room, M):
    return room + _COUNTER_WORDS * tl.cdiv(M, GROUP_ROWS)


@triton.jit
def code_program(
    x, a, partials, room, program, M,
    K: tl.constexpr, WIDTH: tl.constexpr, BLOCK_W: tl.constexpr, SLICE: tl.constexpr, BLOCK_C: tl.constexpr,
    SLICES: tl.constexpr, ASM: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Partial codes ``x Aᵀ`` of 16 rows and one slice of the columns; the last slice to arrive adds them.

    Takes the steps of :mod:`kernels.producer.kernel`, so that the bits are the same.
    """
    part, group = program % SLICES, program // SLICES
    rows, places = group * GROUP_ROWS + tl.arange(0, GROUP_ROWS), tl.arange(0, BLOCK_W)
    if PDL:  # constants may be read before the kernel in front has ended
        line = part * SLICE * WIDTH + tl.arange(0, SLICE * BLOCK_W // 64) * 64
        prefetch(a + tl.minimum(line, K * WIDTH - 1))
        tl.extra.cuda.gdc_wait()
    own = tl.zeros((GROUP_ROWS, BLOCK_W), tl.float32)
    # Few stages: memory for more would keep other programs off the multiprocessor.
    for first in tl.range(part * SLICE, part * SLICE + SLICE, BLOCK_C, num_stages=3):
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
    if tl.atomic_add(room + group, 1, sem="acq_rel", scope="gpu") == SLICES - 1:
        total = tl.zeros((GROUP_ROWS, BLOCK_W), tl.float32)
        AT_ONCE: tl.constexpr = max(512 // BLOCK_W, 4)  # as many as find registers
        for first in range(0, SLICES, AT_ONCE):
            for each in tl.static_range(AT_ONCE):
                there = mask & (first + each < SLICES)
                from_ = partials + (first + each) * M * WIDTH + at
                total += tl.load(from_, mask=there, other=0.0, cache_modifier=".cg")
        tl.store(_codes_of(room, M) + at, as_words(total), mask=mask)


@triton.jit
def code_places(room, rows, segment, M, R: tl.constexpr, S: tl.constexpr):
    """Where zgᵀ (R, BM) of one projection will be."""
    return _codes_of(room, M) + segment * R + rows[None, :] * (S * R) + tl.arange(0, R)[:, None]
