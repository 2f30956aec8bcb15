# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,no-any-return"
# Triton's language has no types that a checker knows.
"""W4 matrix products on Hopper tensor cores, with compensators in the same launch.

The product is computed as ``yᵀ = W xᵀ``. The weight then is the operand that the tensor core takes from
registers, in steps of 64 rows, so codes become halves where they are used and never return to shared memory;
``x`` is the small operand in shared memory, and one row already fills a step. Codes minus 8 are exact in both
16-bit types. Scales are applied to the float32 sums, one multiply-add a group and accumulator.

What holds for a row of ``y``:

=====================================  ======================================================================
claim                                  why
=====================================  ======================================================================
bit-identical for any M and position   A row's sum runs over its own inputs only; rows beyond M read zeros.
... for any BM, BN, warps, stages      A result is the sum over chunks of 128 inputs (groups, if smaller), in
                                       rising order: the tensor core sums a chunk from zero, in steps of 16
                                       inputs; ``fma(chunk, scale, sum)`` adds it in float32. Tile sizes say
                                       which program computes a result, never in which order.
... for any run                        Parts of K are summed as a balanced tree, where several programs share
                                       them by the last to arrive; counting is atomic, adding is not.
... for any SPLIT                      However many programs share the parts, the tree is the same.
same bits with a compensator of zeros  The correction is added in output units, after all parts.
per channel = equal scales per group   Both take the same steps; the scale is loaded once instead.
NaN and infinity stay in their row     No row reads another row's inputs or codes.
not claimed                            Equal bits between PARTS, group sizes, types, GPU models, Triton
                                       versions, or with the dense path (:mod:`kernels.w4a16.dense`).
=====================================  ======================================================================

Callers fix PARTS per layer and GPU (:mod:`kernels.w4a16.plan`), so the first rows hold in service.
"""

import triton
import triton.language as tl

from kernels.w4a16.own_codes import GROUP_ROWS, as_operand, awaited, code_places, code_program, prefetch


@triton.jit
def halves_f16(words):
    """Eight float16 a word, code - 8; 0x6400 | n is 1024 + n, and a nibble four bits up counts 16 n."""
    # pack=1: cross-element assembly is only right where an element is a whole word.
    return tl.inline_asm_elementwise(
        asm="""{
        .reg .b32 high, a, b, c, d, base, low_offset, sixteenth, high_offset;
        mov.b32 base, 0x64006400;
        mov.b32 low_offset, 0x64086408;
        mov.b32 sixteenth, 0x2c002c00;
        mov.b32 high_offset, 0xd480d480;
        shr.u32 high, $8, 8;
        lop3.b32 a, $8, 0x000f000f, base, 0xea;
        lop3.b32 b, $8, 0x00f000f0, base, 0xea;
        lop3.b32 c, high, 0x000f000f, base, 0xea;
        lop3.b32 d, high, 0x00f000f0, base, 0xea;
        sub.rn.f16x2 a, a, low_offset;
        fma.rn.f16x2 b, b, sixteenth, high_offset;
        sub.rn.f16x2 c, c, low_offset;
        fma.rn.f16x2 d, d, sixteenth, high_offset;
        mov.b32 {$0, $1}, a; mov.b32 {$2, $3}, b; mov.b32 {$4, $5}, c; mov.b32 {$6, $7}, d;
        }""",
        constraints="=h,=h,=h,=h,=h,=h,=h,=h,r",
        args=[words],
        dtype=(tl.float16,) * 8,
        is_pure=True,
        pack=1,
    )


@triton.jit
def halves_bf16(words):
    """Eight bfloat16 a word, code - 8; 0x4300 | n is 128 + n, and only the low nibble fits the mantissa."""
    return tl.inline_asm_elementwise(
        asm="""{
        .reg .b32 s4, s8, s12, a, b, c, d, base, offset;
        mov.b32 base, 0x43004300;
        mov.b32 offset, 0x43084308;
        shr.u32 s4, $8, 4;
        shr.u32 s8, $8, 8;
        shr.u32 s12, $8, 12;
        lop3.b32 a, $8, 0x000f000f, base, 0xea;
        lop3.b32 b, s4, 0x000f000f, base, 0xea;
        lop3.b32 c, s8, 0x000f000f, base, 0xea;
        lop3.b32 d, s12, 0x000f000f, base, 0xea;
        sub.rn.bf16x2 a, a, offset;
        sub.rn.bf16x2 b, b, offset;
        sub.rn.bf16x2 c, c, offset;
        sub.rn.bf16x2 d, d, offset;
        mov.b32 {$0, $1}, a; mov.b32 {$2, $3}, b; mov.b32 {$4, $5}, c; mov.b32 {$6, $7}, d;
        }""",
        constraints="=h,=h,=h,=h,=h,=h,=h,=h,r",
        args=[words],
        dtype=(tl.bfloat16,) * 8,
        is_pure=True,
        pack=1,
    )


@triton.jit
def _nibble(words, shift: tl.constexpr):
    return (((words >> shift) & 15) - 8).to(tl.float32)


@triton.jit
def unpack_tile(words, DTYPE: tl.constexpr, ASM: tl.constexpr):
    """Codes of one chunk in natural order, exact; on the GPU a renaming of registers.

    ``words``: int32 (BN, 16), as :mod:`kernels.w4a16.layout` stores them. Returns (BN, 128), float32 without
    ``ASM`` (the interpreter runs no assembly and has no bfloat16 arithmetic).
    """
    BN: tl.constexpr = words.shape[0]
    if not ASM:
        v0, v1, v2, v3 = _nibble(words, 0), _nibble(words, 16), _nibble(words, 4), _nibble(words, 20)
        v4, v5, v6, v7 = _nibble(words, 8), _nibble(words, 24), _nibble(words, 12), _nibble(words, 28)
    elif tl.bfloat16 == DTYPE:
        v0, v1, v2, v3, v4, v5, v6, v7 = halves_bf16(words)
    else:
        v0, v1, v2, v3, v4, v5, v6, v7 = halves_f16(words)
    low = tl.join(tl.join(v0, v1), tl.join(v2, v3))
    high = tl.join(tl.join(v4, v5), tl.join(v6, v7))
    codes = tl.join(low, high)  # ..., j, i, h
    codes = codes.reshape(BN // 64, 2, 4, 8, 4, 4, 2, 2, 2)  # block half warp lane | c u | j i h
    codes = tl.permute(codes, (0, 2, 1, 3, 5, 8, 7, 4, 6))  # block warp half lane | u h i c j
    return codes.reshape(BN, 128)


@triton.jit
def _product(weights, xt, ASM: tl.constexpr):
    if ASM:
        return tl.dot(weights, xt)
    return tl.dot(weights.to(tl.float32), xt.to(tl.float32), input_precision="ieee")


@triton.jit
def _part_of(tile, part):
    """Elements ``part`` (0 or 1) of a last axis of two."""
    even, odd = tl.split(tile)
    if part == 0:
        return even
    return odd


@triton.jit
def _group_codes(codes, part: tl.constexpr, G: tl.constexpr):
    """Inputs ``[part G, (part + 1) G)`` of a chunk's codes."""
    BN: tl.constexpr = codes.shape[0]
    upper: tl.constexpr = part * G // 64
    half = _part_of(tl.permute(codes.reshape(BN, 2, 64), (0, 2, 1)), upper)
    if G == 64:
        group = half
    else:
        group = _part_of(tl.permute(half.reshape(BN, 2, 32), (0, 2, 1)), part % 2)
    return group


@triton.jit
def _load_x(x, rows, inputs, M, K, EVEN_K: tl.constexpr):
    mask = rows[None, :] < M
    if not EVEN_K:
        mask = mask & (inputs[:, None] < K)
    return tl.load(x + rows.to(tl.int64)[None, :] * K + inputs[:, None], mask=mask, other=0.0)


@triton.jit
def _order_shared_memory():
    """What Triton before 3.7 leaves out between cp.async and wgmma, which read through different proxies."""
    tl.inline_asm_elementwise(
        "fence.proxy.async.shared::cta; mov.u32 $0, 0;", "=r", [], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def word_pointers(words, first_output, chunk, chunks, BN: tl.constexpr):
    """(BN, 16) pointers to the words of outputs ``[first_output, + BN)`` at a chunk of inputs."""
    row, word = tl.arange(0, BN), tl.arange(0, 16)
    block = (first_output // 64 + row // 64).to(tl.int64) * chunks + chunk
    return words + block[:, None] * 1024 + (row % 64)[:, None] * 16 + word[None, :]


@triton.jit
def sum_chunks(
    x, words, scales, rows, outputs, first_output, first, last, M, NP, K,
    BM: tl.constexpr, BN: tl.constexpr, G: tl.constexpr, EVEN_K: tl.constexpr,
    ASM: tl.constexpr, FENCE: tl.constexpr,
):  # fmt: skip
    """float32 (BN, BM): the scaled sum over the chunks ``[first, last)``; the one order of additions."""
    DTYPE: tl.constexpr = x.dtype.element_ty
    pointers = word_pointers(words, first_output, first, tl.cdiv(K, 128), BN)
    sums = tl.zeros((BN, BM), tl.float32)
    scale = tl.zeros((BN,), tl.float32)
    if G == 0:
        scale = tl.load(scales + outputs).to(tl.float32)
    elif G >= 128:
        scale = tl.load(scales + (first // (G // 128)) * NP + outputs).to(tl.float32)
    for chunk in range(first, last):
        packed = tl.load(pointers, eviction_policy="evict_first")
        if G == 0 or G >= 128:
            xt = _load_x(x, rows, chunk * 128 + tl.arange(0, 128), M, K, EVEN_K)
            following = scale
            if G >= 128:  # one chunk ahead, since Triton pipelines only what the product itself reads
                ahead = tl.minimum(chunk + 1, last - 1) // (G // 128)
                following = tl.load(scales + ahead * NP + outputs).to(tl.float32)
            codes = unpack_tile(packed, DTYPE, ASM)
            if FENCE:
                _order_shared_memory()
            sums = tl.fma(_product(codes, xt, ASM), tl.broadcast_to(scale[:, None], (BN, BM)), sums)
            scale = following
        else:
            codes = unpack_tile(packed, DTYPE, ASM)
            for part in tl.static_range(128 // G):
                xt = _load_x(x, rows, chunk * 128 + part * G + tl.arange(0, G), M, K, EVEN_K)
                group = chunk * (128 // G) + part
                scale = tl.load(scales + group * NP + outputs).to(tl.float32)
                if FENCE:
                    _order_shared_memory()
                partial = _product(_group_codes(codes, part, G), xt, ASM)
                sums = tl.fma(partial, tl.broadcast_to(scale[:, None], (BN, BM)), sums)
        pointers += 1024
    return sums


@triton.jit
def _load_b(b, outputs, owned, R: tl.constexpr, FURTHER: tl.constexpr):
    """B (BN, R) of the outputs that one projection owns.

    Volatile where it is a further projection's: the assembler of CUDA 12.8 took the zeros that a mask left in
    the first one's load, at the same places, for what is there.
    """
    at = b + outputs[:, None] * R + tl.arange(0, R)[None, :]
    return tl.load(at, mask=owned[:, None], other=0.0, volatile=FURTHER)


@triton.jit
def _given_codes(
    zg, rows, mask, segment, M, DTYPE: tl.constexpr, R: tl.constexpr, S: tl.constexpr, P: tl.constexpr
):
    """zgᵀ (R, BM) of one projection in the compute type: the sum of P partial codes, in rising order."""
    at = zg + rows[None, :] * (S * R) + (segment * R + tl.arange(0, R))[:, None]
    codes = tl.load(at, mask=mask, other=0.0)
    for each in tl.static_range(1, P):
        codes += tl.load(at + each * M * (S * R), mask=mask, other=0.0)
    return as_operand(codes, DTYPE)


@triton.jit
def _own_codes(places, seen, mask, DTYPE: tl.constexpr, ASM: tl.constexpr):
    """The same of this launch's first programs; ``seen`` is what was there before."""
    codes = awaited(places, seen) if ASM else tl.load(places, mask=mask, other=0).to(tl.float32, bitcast=True)
    return as_operand(tl.where(mask, codes, 0.0), DTYPE)


@triton.jit
def _corrected(
    sums, b, zg, room, rows, outputs, first_output, b_tile, zt, mask, M,
    BN: tl.constexpr, R: tl.constexpr, S: tl.constexpr, P: tl.constexpr, ENDS: tl.constexpr,
    INSIDE: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """Adds the correction ``b_tile zt``, and those of projections that begin inside the tile."""
    DTYPE: tl.constexpr = b.dtype.element_ty
    sums += _product(b_tile, zt, ASM)
    for each in tl.static_range(1, S):
        if ENDS[each - 1] % BN != 0:  # noqa: SIM102 (at compile time)
            if (first_output < ENDS[each - 1]) & (ENDS[each - 1] < first_output + BN):
                owned = (outputs >= ENDS[each - 1]) & (outputs < ENDS[each])
                if INSIDE:
                    places = code_places(room, rows, each, M, R, S)
                    seen = tl.load(places, mask=mask, other=1, volatile=True)
                    further = _own_codes(places, seen, mask, DTYPE, ASM)
                else:
                    further = _given_codes(zg, rows, mask, each, M, DTYPE, R, S, P)
                sums += _product(_load_b(b, outputs, owned, R, True), further, ASM)
    return sums


@triton.jit
def _sum_parts(
    x, words, scales, rows, outputs, first_output, part, halves, M,
    NP: tl.constexpr, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, G: tl.constexpr,
    PARTS: tl.constexpr, COUNT: tl.constexpr, ASM: tl.constexpr, FENCE: tl.constexpr,
):  # fmt: skip
    """float32 (BN, BM): the sum over ``COUNT`` parts from ``part`` on, as a balanced tree.

    ``halves``: this program's memory, BN BM for each level of the tree, where half a sum waits for the other
    half: registers are full.
    """
    if COUNT == 1:
        chunks: tl.constexpr = (K + 127) // 128
        first, last = part * chunks // PARTS, (part + 1) * chunks // PARTS
        sums = sum_chunks(x, words, scales, rows, outputs, first_output, first, last, M, NP, K,
                          BM, BN, G, K % 128 == 0, ASM, FENCE)  # fmt: skip
    else:
        HALF: tl.constexpr = COUNT // 2
        deeper = halves + BN * BM
        lower = _sum_parts(x, words, scales, rows, outputs, first_output, part, deeper, M, NP, K,
                           BM, BN, G, PARTS, HALF, ASM, FENCE)  # fmt: skip
        places = tl.arange(0, BN)[:, None] * BM + tl.arange(0, BM)[None, :]
        tl.store(halves + places, lower)
        upper = _sum_parts(x, words, scales, rows, outputs, first_output, part + HALF, deeper, M, NP, K,
                           BM, BN, G, PARTS, HALF, ASM, FENCE)  # fmt: skip
        tl.debug_barrier()  # another thread may have written what this one reads
        sums = tl.load(halves + places) + upper
    return sums


@triton.jit
def sum_stored(at, stride, live, COUNT: tl.constexpr):
    """The same tree over sums that other programs have stored."""
    if COUNT == 1:
        sums = tl.load(at, mask=live, other=0.0, cache_modifier=".cg")
    else:
        HALF: tl.constexpr = COUNT // 2
        lower = sum_stored(at, stride, live, HALF)
        sums = lower + sum_stored(at + HALF * stride, stride, live, HALF)
    return sums


@triton.jit
def _tile_program(
    x, words, scales, bias, b, zg, room, y, partials, arrivals,
    row_tile, row_tiles, output_tile, program, M,
    N: tl.constexpr, NP: tl.constexpr, K: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, G: tl.constexpr, PARTS: tl.constexpr, SPLIT: tl.constexpr,
    LEVELS: tl.constexpr, HAS_BIAS: tl.constexpr, R: tl.constexpr, S: tl.constexpr, P: tl.constexpr,
    ENDS: tl.constexpr, INSIDE: tl.constexpr, ASM: tl.constexpr, FENCE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """A program's parts of K of one tile; the tile's last program completes it."""
    DTYPE: tl.constexpr = x.dtype.element_ty
    RUN: tl.constexpr = PARTS // SPLIT
    TILES: tl.constexpr = NP // BN
    rows = row_tile * BM + tl.arange(0, BM)
    first_output = output_tile * BN
    outputs = first_output + tl.arange(0, BN)
    chunks: tl.constexpr = (K + 127) // 128
    part = program * RUN
    live = rows[None, :] < M  # padding would be most of what is stored, where rows are few
    segment = 0
    if R > 0:
        end = ENDS[0]
        for each in tl.static_range(S - 1):
            beyond = first_output >= ENDS[each]
            segment += beyond.to(tl.int32)
            end = tl.where(beyond, ENDS[each + 1], end)
        if SPLIT == 1 and not INSIDE:
            b_tile = _load_b(b, outputs, outputs < end, R, False)
        elif ASM:
            prefetch(b + outputs * R)
    if PDL:  # constants may be read before the kernel in front has ended
        prefetch(word_pointers(words, first_output, part * chunks // PARTS, chunks, BN))
        tl.extra.cuda.gdc_wait()
    if R > 0 and SPLIT == 1 and not INSIDE:  # else later, when other programs' sums or codes are there
        zt = _given_codes(zg, rows, live, segment, M, DTYPE, R, S, P)
    place = (row_tile * TILES + output_tile) * SPLIT + program
    halves = partials
    if LEVELS > 0:
        halves = partials + place.to(tl.int64) * (LEVELS * BN * BM)
    if INSIDE:
        code_words = code_places(room, rows, segment, M, R, S)
    if INSIDE and RUN > 1:  # the last step of _sum_parts here, with codes on their way during its second half
        HALF: tl.constexpr = RUN // 2
        deeper = halves + BN * BM
        lower = _sum_parts(x, words, scales, rows, outputs, first_output, part, deeper, M, NP, K,
                           BM, BN, G, PARTS, HALF, ASM, FENCE)  # fmt: skip
        seen = tl.load(code_words, mask=live, other=1, volatile=True)
        half_places = tl.arange(0, BN)[:, None] * BM + tl.arange(0, BM)[None, :]
        tl.store(halves + half_places, lower)
        upper = _sum_parts(x, words, scales, rows, outputs, first_output, part + HALF, deeper, M, NP, K,
                           BM, BN, G, PARTS, HALF, ASM, FENCE)  # fmt: skip
        tl.debug_barrier()  # another thread may have written what this one reads
        sums = tl.load(halves + half_places) + upper
    else:
        sums = _sum_parts(x, words, scales, rows, outputs, first_output, part, halves, M, NP, K,
                          BM, BN, G, PARTS, RUN, ASM, FENCE)  # fmt: skip
        if INSIDE:
            seen = tl.load(code_words, mask=live, other=1, volatile=True)
    if INSIDE:
        b_tile = _load_b(b, outputs, outputs < end, R, False)
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    complete = True
    if SPLIT > 1:
        shared = partials + row_tiles.to(tl.int64) * (BM * NP * SPLIT * LEVELS)
        stride = tl.cast(M, tl.int64) * NP
        places = rows.to(tl.int64)[None, :] * NP + outputs[:, None]
        tl.store(shared + program * stride + places, sums, mask=live)
        tl.debug_barrier()  # Triton 3.6 puts none before an atomic that releases
        counter = arrivals + output_tile * row_tiles + row_tile
        complete = tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu") == SPLIT - 1
    if complete:
        if SPLIT > 1:
            if R > 0 and not INSIDE:
                b_tile = _load_b(b, outputs, outputs < end, R, False)
                zt = _given_codes(zg, rows, live, segment, M, DTYPE, R, S, P)
            sums = sum_stored(shared + places, stride, live, SPLIT)
            tl.store(counter, 0)
        if R > 0:
            if INSIDE:
                zt = _own_codes(code_words, seen, live, DTYPE, ASM)
            sums = _corrected(sums, b, zg, room, rows, outputs, first_output, b_tile, zt, live, M,
                              BN, R, S, P, ENDS, INSIDE, ASM)  # fmt: skip
        if HAS_BIAS:
            sums += tl.load(bias + outputs).to(tl.float32)[:, None]
        mask = live & (outputs[:, None] < N)
        target = y + rows.to(tl.int64)[None, :] * N + outputs[:, None]
        tl.store(target, sums.to(y.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["M"])  # one compilation for every row count
def w4a16_kernel(
    x, words, scales, bias, a, b, zg, room, y, partials, arrivals, M,
    N: tl.constexpr, NP: tl.constexpr, K: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, G: tl.constexpr, PARTS: tl.constexpr, SPLIT: tl.constexpr,
    LEVELS: tl.constexpr, HAS_BIAS: tl.constexpr, R: tl.constexpr, S: tl.constexpr, P: tl.constexpr,
    ENDS: tl.constexpr, SLICES: tl.constexpr, SLICE: tl.constexpr, BLOCK_C: tl.constexpr,
    BLOCK_W: tl.constexpr, ASM: tl.constexpr, FENCE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """``y = x Wᵀ + bias + zg Bᵀ`` on the grid ``(ceil(M / BM), NP / BN, SPLIT)``.

    x (M, K); words, scales (groups, NP), bias (NP,) as packed; b (NP, R); zg float32 (P, M, S R), partial
    codes; ENDS where the outputs of the S projections end; y (M, N); partials float32, room for
    PARTS ceil(M / BM) BM NP sums; arrivals int32, zero before and after. SPLIT programs sum PARTS parts of K,
    both powers of two.
    LEVELS = log2(PARTS / SPLIT). G = 0: per channel. R = 0: no compensator.

    SLICES > 0: the launch computes the codes from A, ``a (K, S R)``, in slices of SLICE columns. The grid is
    then one axis, SLICES ceil(M / 16) programs before the others; zg is memory for (SLICES, M, S R) partial
    codes, and room int32 zeros (:mod:`kernels.w4a16.own_codes`).
    """
    if SLICES == 0:
        _tile_program(x, words, scales, bias, b, zg, room, y, partials, arrivals,
                      tl.program_id(0), tl.num_programs(0), tl.program_id(1), tl.program_id(2), M,
                      N, NP, K, BM, BN, G, PARTS, SPLIT, LEVELS, HAS_BIAS, R, S, P, ENDS, False,
                      ASM, FENCE, PDL)  # fmt: skip
    else:
        program, row_tiles = tl.program_id(0), tl.cdiv(M, BM)
        first = SLICES * tl.cdiv(M, GROUP_ROWS)
        if program < first:
            code_program(x, a, zg, room, program, M,
                         K, S * R, BLOCK_W, SLICE, BLOCK_C, SLICES, ASM, PDL)  # fmt: skip
        else:
            tile = (program - first) // row_tiles
            _tile_program(x, words, scales, bias, b, zg, room, y, partials, arrivals,
                          (program - first) % row_tiles, row_tiles, tile % (NP // BN), tile // (NP // BN), M,
                          N, NP, K, BM, BN, G, PARTS, SPLIT, LEVELS, HAS_BIAS, R, S, P, ENDS, True,
                          ASM, FENCE, PDL)  # fmt: skip


@triton.jit
def dequantize_kernel(
    words, scales, w, N, NP, K, STRIDE,
    BN: tl.constexpr, G: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """The weight in ``w``'s type, rows ``STRIDE`` apart, on the grid ``(ceil(K / 128), NP / BN)``."""
    chunk, first_output = tl.program_id(0), tl.program_id(1) * BN
    packed = tl.load(word_pointers(words, first_output, chunk, tl.cdiv(K, 128), BN))
    outputs, inputs = first_output + tl.arange(0, BN), chunk * 128 + tl.arange(0, 128)
    codes = unpack_tile(packed, w.dtype.element_ty, ASM).to(tl.float32)
    mask = (outputs[:, None] < N) & (inputs[None, :] < K)
    if G == 0:
        scale = tl.load(scales + outputs)[:, None]
    else:
        scale = tl.load(scales + (inputs // G)[None, :] * NP + outputs[:, None], mask=mask, other=0.0)
    target = w + outputs.to(tl.int64)[:, None] * STRIDE + inputs[None, :]
    tl.store(target, (codes * scale.to(tl.float32)).to(w.dtype.element_ty), mask=mask)
