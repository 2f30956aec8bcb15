# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,no-any-return"
# Gluon, the layer of Triton with explicit layouts, has no types that a checker knows.
"""The W4 product of at most 16 rows: the law of :mod:`kernels.w4a16.kernel` by other instructions.

A warpgroup's tensor-core step seems to take as long for 8 rows as for 64: longer, with few rows, than memory
takes to bring the weights. Here each warp steps by itself (``mma.sync``), 16 outputs × 8 rows at a time.
Steps have the same inputs in the same order, and on Hopper the same bits: those of the other kernel.

The first programs compute the codes of compensators, while the others multiply; the program that completes a
tile waits for them, which it seldom has to (:mod:`kernels.w4a16.own_codes`).

Everything a program reads is on its way before it waits for the kernel in front of it: the weights of its
first chunks and all its scales in shared memory, then ``x``. Layouts are written out, since which register
holds which code is what packing relies on.
"""

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2

from kernels.w4a16.few_rows_codes import (
    awaited_codes,
    code_program,
    codes_operand,
    copy,
    given_codes,
    power_of_two,
    rows_layout,
    seen_codes,
)
from kernels.w4a16.kernel import halves_bf16, halves_f16

_unpacked_bf16, _unpacked_f16 = gluon.jit(halves_bf16.fn), gluon.jit(halves_f16.fn)


@gluon.constexpr_function
def words_layout(outputs):
    """Of (outputs, 16) words: a thread holds the words whose codes its tensor-core operand needs."""
    blocks = [[64 << power, 0] for power in range((outputs // 64).bit_length() - 1)]
    return gl.DistributedLinearLayout(
        reg_bases=[[0, 1], [0, 2], [32, 0], *blocks],
        lane_bases=[[0, 4], [0, 8], [1, 0], [2, 0], [4, 0]],
        warp_bases=[[8, 0], [16, 0]],
        block_bases=[],
        shape=[outputs, 16],
    )


@gluon.jit
def _unpacked(words, DTYPE: gl.constexpr, OPERAND: gl.constexpr):
    """The codes of one chunk as an operand, exact; a renaming of registers."""
    BN: gl.constexpr = words.shape[0]
    if gl.bfloat16 == DTYPE:
        v0, v1, v2, v3, v4, v5, v6, v7 = _unpacked_bf16(words)
    else:
        v0, v1, v2, v3, v4, v5, v6, v7 = _unpacked_f16(words)
    low = gl.join(gl.join(v0, v1), gl.join(v2, v3))
    high = gl.join(gl.join(v4, v5), gl.join(v6, v7))
    codes = gl.join(low, high).reshape(
        [BN // 64, 2, 4, 8, 4, 4, 2, 2, 2]
    )  # block half warp lane | c u | j i h
    codes = gl.permute(codes, [0, 2, 1, 3, 5, 8, 7, 4, 6]).reshape([BN, 128])  # ... | u h i c j
    return gl.convert_layout(codes, OPERAND, assert_trivial=True)


@gluon.jit
def _copy_words(words, target, first_output, chunk, CHUNKS: gl.constexpr, BN: gl.constexpr):
    layout: gl.constexpr = words_layout(BN)
    row = gl.arange(0, BN, gl.SliceLayout(1, layout))
    word = gl.arange(0, 16, gl.SliceLayout(0, layout))
    block = (first_output // 64 + row // 64).to(gl.int64) * CHUNKS + chunk
    at = words + block[:, None] * 1024 + (row % 64)[:, None] * 16 + word[None, :]
    copy(target, at, eviction_policy="evict_first")


@gluon.jit
def _copy_x(x, target, chunk, live, M, K: gl.constexpr, BM: gl.constexpr):
    """One chunk of ``x``; zeros where there is none."""
    layout: gl.constexpr = rows_layout(BM, 128, gl.num_warps())
    row = gl.arange(0, BM, gl.SliceLayout(1, layout))
    column = chunk * 128 + gl.arange(0, 128, gl.SliceLayout(0, layout))
    mask = (row[:, None] < M) & live
    if K % 128 != 0:
        mask = mask & (column[None, :] < K)
    at = x + row[:, None] * K + column[None, :]
    copy(target, at, mask=mask)


@gluon.jit
def _copy_scales(
    scales, target, first_output, first, last, NP: gl.constexpr, G: gl.constexpr, ROOM: gl.constexpr
):
    """Those of every chunk of the part."""
    layout: gl.constexpr = gl.BlockedLayout([8], [32], [gl.num_warps()], [0])
    output = first_output + gl.arange(0, target.shape[1], layout)
    for row in gl.static_range(ROOM):
        group = (first + row) // (G // 128) if G > 0 else 0
        there = (output >= 0) & (first + row < last)
        copy(target.index(row), scales + group * NP + output, mask=there)


@gluon.jit
def _load_b(
    b, first_output, begin, end, R: gl.constexpr, BN: gl.constexpr, OPERAND: gl.constexpr,
    FURTHER: gl.constexpr,
):  # fmt: skip
    """B (BN, R) of the outputs in ``[begin, end)`` as an operand; volatile for the reason that the other
    kernel has."""
    output = first_output + gl.arange(0, BN, gl.SliceLayout(1, OPERAND))
    column = gl.arange(0, R, gl.SliceLayout(0, OPERAND))
    owned = (output >= begin) & (output < end)
    at = b + output[:, None] * R + column[None, :]
    return gl.load(at, mask=owned[:, None], other=0.0, volatile=FURTHER)


@gluon.jit
def _sum_stored(at, stride, live, COUNT: gl.constexpr):
    """The balanced tree over the sums of COUNT parts."""
    if COUNT == 1:
        sums = gl.load(at, mask=live, other=0.0, cache_modifier=".cg")
    else:
        HALF: gl.constexpr = COUNT // 2
        lower = _sum_stored(at, stride, live, HALF)
        sums = lower + _sum_stored(at + HALF * stride, stride, live, HALF)
    return sums


@gluon.jit
def _tile_program(
    x, words, scales, bias, b, zg, room, y, partials, counters, output_tile, part, M,
    N: gl.constexpr, NP: gl.constexpr, K: gl.constexpr,
    BM: gl.constexpr, BN: gl.constexpr, G: gl.constexpr, PARTS: gl.constexpr, STAGES: gl.constexpr,
    HAS_BIAS: gl.constexpr, R: gl.constexpr, S: gl.constexpr, P: gl.constexpr, ENDS: gl.constexpr,
    INSIDE: gl.constexpr, PDL: gl.constexpr, EARLY: gl.constexpr,
):  # fmt: skip
    """One part of K of one tile of outputs; the last part's program completes the tile."""
    DTYPE: gl.constexpr = x.dtype.element_ty
    WARPS: gl.constexpr = gl.num_warps()
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [WARPS, 1], [16, 8])
    LEFT: gl.constexpr = gl.DotOperandLayout(0, SUMS, 2)
    RIGHT: gl.constexpr = gl.DotOperandLayout(1, SUMS, 2)
    PLAIN: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    SWIZZLED: gl.constexpr = gl.SwizzledSharedLayout(8, 1, 8, [1, 0])
    CHUNKS: gl.constexpr = (K + 127) // 128
    ROOM: gl.constexpr = power_of_two((CHUNKS + PARTS - 1) // PARTS)
    first, last = part * CHUNKS // PARTS, (part + 1) * CHUNKS // PARTS
    first_output = output_tile * BN
    w_ring = gl.allocate_shared_memory(gl.int32, [STAGES, BN, 16], PLAIN)
    x_ring = gl.allocate_shared_memory(DTYPE, [STAGES, BM, 128], SWIZZLED)
    LINE: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    scale_rows = gl.allocate_shared_memory(scales.dtype.element_ty, [ROOM, BN], LINE)
    for stage in gl.static_range(STAGES - 1):
        if first + stage < last:
            _copy_words(words, w_ring.index(stage), first_output, first + stage, CHUNKS, BN)
    _copy_scales(scales, scale_rows, first_output, first, last, NP, G, ROOM)
    async_copy.commit_group()
    if PDL:
        tl.extra.cuda.gdc_wait()
    for stage in gl.static_range(STAGES - 1):
        _copy_x(x, x_ring.index(stage), first + stage, first + stage < last, M, K, BM)
        async_copy.commit_group()

    sums = gl.zeros([BN, BM], gl.float32, SUMS)
    for step in range(last - first):
        async_copy.wait_group(STAGES - 2)
        tl.debug_barrier()
        ahead = step + STAGES - 1
        if first + ahead < last:
            _copy_words(words, w_ring.index(ahead % STAGES), first_output, first + ahead, CHUNKS, BN)
            _copy_x(x, x_ring.index(ahead % STAGES), first + ahead, first + ahead < last, M, K, BM)
        async_copy.commit_group()
        codes = _unpacked(w_ring.index(step % STAGES).load(words_layout(BN)), DTYPE, LEFT)
        xt = x_ring.index(step % STAGES).permute([1, 0]).load(RIGHT)
        scale = scale_rows.index(step).load(gl.SliceLayout(1, SUMS)).to(gl.float32)
        chunk = mma_v2(codes, xt, gl.zeros([BN, BM], gl.float32, SUMS))
        sums = gl.fma(chunk, scale[:, None], sums)
    if PDL and not EARLY:
        tl.extra.cuda.gdc_launch_dependents()

    outputs = first_output + gl.arange(0, BN, gl.SliceLayout(1, SUMS))
    rows = gl.arange(0, BM, gl.SliceLayout(0, SUMS))
    live = (rows[None, :] < M) & (outputs[:, None] < NP)
    segment = 0
    begin = 0
    if R > 0:
        end = ENDS[0]
        for each in gl.static_range(S - 1):
            beyond = first_output >= ENDS[each]
            segment += beyond.to(gl.int32)
            end = gl.where(beyond, ENDS[each + 1], end)
        b_tile = _load_b(b, first_output, begin, end, R, BN, LEFT, False)
        if INSIDE:  # on their way while the other programs are asked for
            seen = seen_codes(room, segment, M, BM, R, S)
    complete = True
    if PARTS > 1:
        stride = M.to(gl.int64) * NP
        at = partials + rows.to(gl.int64)[None, :] * NP + outputs[:, None]
        gl.store(at + part * stride, sums, mask=live)
        tl.debug_barrier()  # none is put before an atomic that releases
        complete = gl.atomic_add(counters + output_tile, 1, sem="acq_rel", scope="gpu") == PARTS - 1
    if complete:
        if PARTS > 1:
            gl.store(counters + output_tile, 0)
        if R > 0:
            if INSIDE:
                codes = awaited_codes(room, seen, segment, M, BM, R, S)
            else:
                codes = given_codes(zg, segment, M, BM, R, S, P)
        if PARTS > 1:
            sums = _sum_stored(at, stride, live, PARTS)
        if R > 0:
            sums = mma_v2(b_tile, codes_operand(codes, DTYPE, RIGHT), sums)
            for each in gl.static_range(1, S):
                if ENDS[each - 1] % BN != 0:  # noqa: SIM102 (at compile time)
                    if (first_output < ENDS[each - 1]) & (ENDS[each - 1] < first_output + BN):
                        if INSIDE:
                            seen = seen_codes(room, each, M, BM, R, S)
                            codes = awaited_codes(room, seen, each, M, BM, R, S)
                        else:
                            codes = given_codes(zg, each, M, BM, R, S, P)
                        own = _load_b(b, first_output, ENDS[each - 1], ENDS[each], R, BN, LEFT, True)
                        sums = mma_v2(own, codes_operand(codes, DTYPE, RIGHT), sums)
        if HAS_BIAS:
            sums += gl.load(bias + outputs).to(gl.float32)[:, None]
        target = y + rows.to(gl.int64)[None, :] * N + outputs[:, None]
        gl.store(target, sums.to(DTYPE), mask=live & (outputs[:, None] < N))


@gluon.jit(do_not_specialize=["M"])  # one compilation for every row count
def few_rows_kernel(
    x, words, scales, bias, a, b, zg, room, y, partials, counters, M,
    N: gl.constexpr, NP: gl.constexpr, K: gl.constexpr,
    BM: gl.constexpr, BN: gl.constexpr, G: gl.constexpr, PARTS: gl.constexpr, STAGES: gl.constexpr,
    HAS_BIAS: gl.constexpr, R: gl.constexpr, S: gl.constexpr, P: gl.constexpr, ENDS: gl.constexpr,
    SLICES: gl.constexpr, BLOCK_C: gl.constexpr, STEPS: gl.constexpr,
    PDL: gl.constexpr, EARLY: gl.constexpr,
):  # fmt: skip
    """``y = x Wᵀ + bias + zg Bᵀ`` on the grid ``(SLICES + NP / BN PARTS,)``; M up to BM, 8 or 16.

    Arguments as of ``w4a16_kernel`` with SPLIT = PARTS, and G is 0 or a multiple of 128. SLICES = 0: zg are
    codes of a kernel in front. Else the first SLICES programs compute them from A, ``a (K, S R)``, in slices
    of STEPS BLOCK_C columns; zg is then memory for (SLICES, M, S R) partial codes, and room int32 zeros.
    counters int32, NP / BN arrivals, zero before and after.
    """
    TILES: gl.constexpr = NP // BN
    if PDL and EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    program = gl.program_id(0)
    if SLICES == 0:
        _tile_program(x, words, scales, bias, b, zg, room, y, partials, counters,
                      program % TILES, program // TILES, M,
                      N, NP, K, BM, BN, G, PARTS, STAGES, HAS_BIAS, R, S, P, ENDS, False,
                      PDL, EARLY)  # fmt: skip
    elif program < SLICES:
        code_program(x, a, zg, room, program, M,
                     K, BM, S * R, power_of_two(S * R), BLOCK_C, STEPS, SLICES, PDL)  # fmt: skip
    else:
        program -= SLICES
        _tile_program(x, words, scales, bias, b, zg, room, y, partials, counters,
                      program % TILES, program // TILES, M,
                      N, NP, K, BM, BN, G, PARTS, STAGES, HAS_BIAS, R, S, P, ENDS, True,
                      PDL, EARLY)  # fmt: skip
