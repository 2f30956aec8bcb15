# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,no-any-return"
# Triton's language has no types that a checker knows.
"""The whole compensated product in one launch: A x, gate, W x and B in one kernel. Needs Triton.

The first programs compute slices of A x while the others multiply codes; the program that completes a tile
waits for the slices, repeats the gate for its rows and adds B. It saves a launch where nothing in front of
the product can fold A x in, and pays with a gate for each tile; the benchmark says where that wins.

Programs wait for programs with smaller numbers. That ends because GPUs start programs in the order of their
numbers, and the first ones wait for nobody; a launch that is cut off leaves its counters dirty
(:meth:`kernels.w4a16.workspace.Workspace.check_integrity`).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.compensator.layout import GpuCompensator
from kernels.w4a16.gpu import check, check_compensator, compiled, needs_fence
from kernels.w4a16.kernel import sum_chunks, sum_stored
from kernels.w4a16.layout import TILE_INPUTS, GpuWeight
from kernels.w4a16.plan import LayerPlan
from kernels.w4a16.workspace import Workspace

_MAX_SLICES = 32
_GATE_LIMIT = tl.constexpr(8.0)  # kernels.compensator.reference.GATE_INPUT_LIMIT


@triton.jit
def _code_slice(
    x, a, rows, first, M, K, WIDTH,
    BM: tl.constexpr, R: tl.constexpr, SLICE: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """float32 (R, BM): ``A xᵀ`` of one projection over the inputs ``[first, first + SLICE)`` that exist."""
    rank = tl.arange(0, R)
    code = tl.zeros((R, BM), tl.float32)
    for step in tl.static_range(0, SLICE, 128):
        inputs = first + step + tl.arange(0, 128)
        xt = tl.load(
            x + rows.to(tl.int64)[None, :] * K + inputs[:, None],
            mask=(rows[None, :] < M) & (inputs[:, None] < K),
            other=0.0,
        )
        down = tl.load(a + inputs[None, :] * WIDTH + rank[:, None], mask=inputs[None, :] < K, other=0.0)
        if not ASM:  # the interpreter has no bfloat16 arithmetic
            down, xt = down.to(tl.float32), xt.to(tl.float32)
        code += tl.dot(down, xt, input_precision="ieee")
    return code


@triton.jit
def _apply_gate(code, w1, b1, w2, b2, gated, segment, R: tl.constexpr, H: tl.constexpr):
    """``gate(code) * code``, (R, BM) float32, by the gate of one projection."""
    rank, hidden = tl.arange(0, R), tl.arange(0, H)
    w1 += segment * H * R
    w2 += segment * R * H
    limited = tl.minimum(tl.maximum(code, -_GATE_LIMIT), _GATE_LIMIT)
    up = tl.dot(tl.load(w1 + hidden[:, None] * R + rank[None, :]), limited, input_precision="ieee")
    up += tl.load(b1 + segment * H + hidden)[:, None]
    up = up * tl.sigmoid(up)
    out = tl.dot(tl.load(w2 + rank[:, None] * H + hidden[None, :]), up, input_precision="ieee")
    out += tl.load(b2 + segment * R + rank)[:, None]
    return tl.where(tl.load(gated + segment) != 0, 2.0 * tl.sigmoid(out), 1.0) * code


@triton.jit(do_not_specialize=["M"])  # one compilation for every row count
def single_launch_kernel(
    x, words, scales, bias, a, b, bounds, w1, b1, w2, b2, gated, y, partials, code_partials, counters,
    M, N, NP, K,
    BM: tl.constexpr, BN: tl.constexpr, G: tl.constexpr, SPLIT: tl.constexpr, EVEN_K: tl.constexpr,
    HAS_BIAS: tl.constexpr, R: tl.constexpr, H: tl.constexpr, S: tl.constexpr,
    SLICE: tl.constexpr, SLICES: tl.constexpr, ASM: tl.constexpr, FENCE: tl.constexpr,
):  # fmt: skip
    """One row tile on the grid ``(SLICES + NP / BN * SPLIT,)``; M is at most BM.

    code_partials float32 (SLICES, S, R, BM); counters int32 (2 + NP / BN,), zero before and after: slices
    done, tiles done, parts done of each tile. The rest as in ``w4a16_kernel`` and ``codes_kernel``.
    """
    program = tl.program_id(0)
    rows, rank = tl.arange(0, BM), tl.arange(0, R)
    places = rank[:, None] * BM + rows[None, :]
    if program < SLICES:
        for segment in tl.static_range(S):
            code = _code_slice(x, a + segment * R, rows, program * SLICE, M, K, S * R, BM, R, SLICE, ASM)
            tl.store(code_partials + (program * S + segment) * R * BM + places, code)
        tl.debug_barrier()  # Triton 3.6 puts none before an atomic that releases
        tl.atomic_add(counters, 1, sem="release", scope="gpu")
    else:
        tile, part = (program - SLICES) // SPLIT, (program - SLICES) % SPLIT
        first_output = tile * BN
        outputs = first_output + tl.arange(0, BN)
        chunks = tl.cdiv(K, 128)
        first, last = part * chunks // SPLIT, (part + 1) * chunks // SPLIT
        sums = sum_chunks(x, words, scales, rows, outputs, first_output, first, last, M, NP, K,
                          BM, BN, G, EVEN_K, ASM, FENCE)  # fmt: skip
        live = rows[None, :] < M
        at = partials + rows[None, :] * NP + outputs[:, None]
        tl.store(at + part * M * NP, sums, mask=live)
        tl.debug_barrier()
        if tl.atomic_add(counters + 2 + tile, 1, sem="acq_rel", scope="gpu") == SPLIT - 1:
            sums = sum_stored(at, M * NP, live, SPLIT)
            tl.store(counters + 2 + tile, 0)
            while tl.atomic_add(counters, 0, sem="acquire", scope="gpu") < SLICES:
                pass
            for segment in tl.static_range(S):
                start, end = tl.load(bounds + segment), tl.load(bounds + segment + 1)
                if (start < first_output + BN) & (end > first_output):
                    code = tl.zeros((R, BM), tl.float32)
                    for each in tl.static_range(SLICES):
                        own = code_partials + (each * S + segment) * R * BM
                        code += tl.load(own + places, cache_modifier=".cg")
                    if H > 0:
                        code = _apply_gate(code, w1, b1, w2, b2, gated, segment, R, H)
                    owned = (outputs >= start) & (outputs < end)
                    up = tl.load(b + outputs[:, None] * R + rank[None, :], mask=owned[:, None], other=0.0)
                    if b.dtype.element_ty == tl.float16:  # 0 times an overflow would be NaN
                        code = tl.where(code == code, tl.clamp(code, -65504.0, 65504.0), code)
                    code = code.to(b.dtype.element_ty)
                    if ASM:
                        sums += tl.dot(up, code)
                    else:
                        sums += tl.dot(up.to(tl.float32), code.to(tl.float32), input_precision="ieee")
            if HAS_BIAS:
                sums += tl.load(bias + outputs).to(tl.float32)[:, None]
            mask = (rows[None, :] < M) & (outputs[:, None] < N)
            tl.store(y + rows[None, :] * N + outputs[:, None], sums.to(y.dtype.element_ty), mask=mask)
            tl.debug_barrier()
            if tl.atomic_add(counters + 1, 1, sem="acq_rel", scope="gpu") == NP // BN - 1:
                tl.store(counters, 0)  # every tile has used the codes
                tl.store(counters + 1, 0)


def _slice_size(in_features: int) -> int:
    """Inputs of one slice: 256, more where that would be too many slices."""
    return 128 * max(2, -(-in_features // (128 * _MAX_SLICES)))


def multiply(
    x: Tensor, weight: GpuWeight, plan: LayerPlan, workspace: Workspace, compensator: GpuCompensator
) -> Tensor:
    """``x weightᵀ + bias + B (gate(A x) * A x)`` in the type of ``x``.

    Args:
        x: float16 or bfloat16 ``(M, K)``, contiguous, 16-byte aligned; M is at most the rows of its tile.
        weight: ``(N, K)``.
        plan: The layer's.
        workspace: Not used by another launch that may run at once.
        compensator: In the type of ``x``.

    Returns:
        ``(M, N)``.

    Raises:
        ValueError: Something does not fit the kernel.
    """
    check(x, weight)
    check_compensator(x, weight, compensator)
    tile, padded = plan.tile(len(x)), weight.padded_outputs
    if len(x) > tile.rows:
        raise ValueError(f"one launch takes at most {tile.rows} rows, not {len(x)}; use separate kernels")
    y = torch.empty(len(x), weight.out_features, dtype=x.dtype, device=x.device)
    if not len(x):
        return y
    size, gate, tiles = _slice_size(weight.in_features), compensator.gate, padded // tile.outputs
    slices = triton.cdiv(weight.in_features, size)
    sums = plan.parts * padded * tile.rows
    partials = workspace.partials(sums + slices * compensator.code_width * tile.rows)
    single_launch_kernel[(slices + tiles * plan.parts,)](
        x,
        weight.words,
        weight.scales,
        weight.bias,
        compensator.down,
        compensator.b,
        compensator.bounds,
        *((None,) * 5 if gate is None else (gate.w1, gate.b1, gate.w2, gate.b2, gate.gated)),
        y,
        partials,
        partials[sums:],
        workspace.counters(2 + tiles),
        len(x),
        weight.out_features,
        padded,
        weight.in_features,
        BM=tile.rows,
        BN=tile.outputs,
        G=weight.group_size,
        SPLIT=plan.parts,
        EVEN_K=weight.in_features % TILE_INPUTS == 0,
        HAS_BIAS=weight.bias is not None,
        R=compensator.rank,
        H=0 if gate is None else gate.w1.shape[1],
        S=compensator.segments,
        SLICE=size,
        SLICES=slices,
        ASM=compiled(),
        FENCE=needs_fence(),
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    return y
