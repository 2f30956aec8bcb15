# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,no-any-return"
# Triton's language has no types that a checker knows.
"""Gated codes ``zg = gate(A x) * A x`` on the GPU, as a kernel of their own.

Used where nothing in front of the product can fold them in. K is cut into slices of a size that K alone
fixes. Without gates each program stores its slice, and the product adds; with gates the program that arrives
last adds the slices in rising order and applies the gate. Either way a row's codes have the same bits in any
batch. Everything is held transposed, (R, BM), as the product wants it.
"""

import triton
import triton.language as tl

GATE_LIMIT = tl.constexpr(8.0)  # kernels.compensator.reference.GATE_INPUT_LIMIT


@triton.jit
def code_slice(
    x, a, rows, first, M, K,
    BM: tl.constexpr, R: tl.constexpr, SLICE: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """float32 (R, BM): ``A xᵀ`` over the inputs ``[first, first + SLICE)`` that exist."""
    rank = tl.arange(0, R)
    code = tl.zeros((R, BM), tl.float32)
    for step in tl.static_range(0, SLICE, 128):
        inputs = first + step + tl.arange(0, 128)
        xt = tl.load(
            x + rows.to(tl.int64)[None, :] * K + inputs[:, None],
            mask=(rows[None, :] < M) & (inputs[:, None] < K),
            other=0.0,
        )
        down = tl.load(a + rank[:, None] * K + inputs[None, :], mask=inputs[None, :] < K, other=0.0)
        if not ASM:  # the interpreter has no bfloat16 arithmetic
            down, xt = down.to(tl.float32), xt.to(tl.float32)
        code += tl.dot(down, xt, input_precision="ieee")
    return code


@triton.jit
def apply_gate(code, w1, b1, w2, b2, gated, segment, R: tl.constexpr, H: tl.constexpr):
    """``gate(code) * code``, (R, BM) float32, by the gate of one projection."""
    rank, hidden = tl.arange(0, R), tl.arange(0, H)
    w1 += segment * H * R
    w2 += segment * R * H
    limited = tl.minimum(tl.maximum(code, -GATE_LIMIT), GATE_LIMIT)
    up = tl.dot(tl.load(w1 + hidden[:, None] * R + rank[None, :]), limited, input_precision="ieee")
    up += tl.load(b1 + segment * H + hidden)[:, None]
    up = up * tl.sigmoid(up)
    out = tl.dot(tl.load(w2 + rank[:, None] * H + hidden[None, :]), up, input_precision="ieee")
    out += tl.load(b2 + segment * R + rank)[:, None]
    return tl.where(tl.load(gated + segment) != 0, 2.0 * tl.sigmoid(out), 1.0) * code


@triton.jit(do_not_specialize=["M"])  # one compilation for every row count
def codes_kernel(
    x, a, w1, b1, w2, b2, gated, zg, partials, arrivals, M, K,
    BM: tl.constexpr, R: tl.constexpr, H: tl.constexpr, S: tl.constexpr,
    SLICE: tl.constexpr, SLICES: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """Codes of S projections on the grid ``(ceil(M / BM), SLICES, S)``.

    x (M, K); a (S, R, K); the gate as :class:`kernels.compensator.layout.GpuGate`, H = 0: static;
    zg float32 (SLICES, M, S R), gated (1, M, S R); partials float32 (S, SLICES, R, ceil(M / BM) BM) and
    arrivals int32, zero before and after, of gates alone.
    """
    row_tile, part, segment = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    rows = row_tile * BM + tl.arange(0, BM)
    rank = tl.arange(0, R)
    code = code_slice(x, a + segment * R * K, rows, part * SLICE, M, K, BM, R, SLICE, ASM)
    target = zg + rows[None, :] * (S * R) + segment * R + rank[:, None]
    if H == 0:
        tl.store(target + part.to(tl.int64) * M * (S * R), code, mask=rows[None, :] < M)
    else:
        width = tl.num_programs(0) * BM
        places = rank[:, None] * width + rows[None, :]
        own = partials + segment * SLICES * R * width
        tl.store(own + part * R * width + places, code)
        tl.debug_barrier()  # Triton 3.6 puts none before an atomic that releases
        counter = arrivals + segment * tl.num_programs(0) + row_tile
        if tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu") == SLICES - 1:
            code = tl.zeros((R, BM), tl.float32)
            for each in tl.static_range(SLICES):
                code += tl.load(own + each * R * width + places, cache_modifier=".cg")
            code = apply_gate(code, w1, b1, w2, b2, gated, segment, R, H)
            tl.store(target, code, mask=rows[None, :] < M)
            tl.store(counter, 0)
