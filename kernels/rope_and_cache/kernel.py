# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,no-any-return"
# Triton's language has no types that a checker knows.
"""Head norms, rotary positions and the cache write in one launch.

A program takes one row and a few heads, as two halves of a head, so that partners of a turn stand in the same
thread. Rows and heads do not depend on each other: a row's result is the same in any batch.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.tensor_checks import FLOATS, power_of_two, require

_ELEMENTS = 1024  # a program, in each half


@triton.jit
def rope_and_cache_kernel(
    qkv,
    cache,
    cosines,
    sines,
    positions,
    slots,
    q_norm,
    k_norm,
    eps,
    qkv_stride,
    H: tl.constexpr,
    KV: tl.constexpr,
    D: tl.constexpr,
    HALF: tl.constexpr,
    HEADS: tl.constexpr,
    HAS_Q_NORM: tl.constexpr,
    HAS_K_NORM: tl.constexpr,
):
    """Grid ``(N, ceil((H + 2 KV) / HEADS))``; HALF is D / 2 as a power of two."""
    row = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    dims = tl.arange(0, HALF)
    dim_mask = dims < D // 2
    mask = (heads < H + 2 * KV)[:, None] & dim_mask[None, :]
    source = qkv + row * qkv_stride + heads[:, None] * D + dims[None, :]
    first_raw = tl.load(source, mask=mask, other=0.0)
    second_raw = tl.load(source + D // 2, mask=mask, other=0.0)
    first, second = first_raw.to(tl.float32), second_raw.to(tl.float32)

    if HAS_Q_NORM or HAS_K_NORM:
        mean = (tl.sum(first * first, 1) + tl.sum(second * second, 1)) / D
        scale = (1.0 / tl.sqrt(mean + eps))[:, None]
        if HAS_Q_NORM:
            first, second = _scaled(first, second, scale, q_norm, heads < H, dims, D, qkv.dtype.element_ty)
        if HAS_K_NORM:
            chosen = (heads >= H) & (heads < H + KV)
            first, second = _scaled(first, second, scale, k_norm, chosen, dims, D, qkv.dtype.element_ty)

    table = tl.load(positions + row).to(tl.int64) * (D // 2) + dims
    cosine = tl.load(cosines + table, mask=dim_mask, other=0.0)[None, :]
    sine = tl.load(sines + table, mask=dim_mask, other=0.0)[None, :]
    first_turned = (first * cosine - second * sine).to(first_raw.dtype)
    second_turned = (second * cosine + first * sine).to(first_raw.dtype)

    is_query = (heads < H)[:, None] & mask
    tl.store(source, first_turned, mask=is_query)
    tl.store(source + D // 2, second_turned, mask=is_query)
    slot = tl.load(slots + row).to(tl.int64)
    if slot >= 0:
        # In a slot all keys precede all values, as in qkv.
        target = cache + slot * (2 * KV * D) + (heads - H)[:, None] * D + dims[None, :]
        is_value = (heads >= H + KV)[:, None]
        written = (heads >= H)[:, None] & mask
        kept = cache.dtype.element_ty
        tl.store(target, tl.where(is_value, first_raw, first_turned).to(kept), mask=written)
        tl.store(target + D // 2, tl.where(is_value, second_raw, second_turned).to(kept), mask=written)


@triton.jit
def _scaled(first, second, scale, weight, chosen, dims, D: tl.constexpr, DTYPE: tl.constexpr):
    """Both halves of the chosen heads after their norm, rounded as they would be stored."""
    mask = dims < D // 2
    low = tl.load(weight + dims, mask=mask, other=0.0).to(tl.float32)[None, :]
    high = tl.load(weight + D // 2 + dims, mask=mask, other=0.0).to(tl.float32)[None, :]
    normed = ((first * scale).to(DTYPE).to(tl.float32) * low).to(DTYPE).to(tl.float32)
    normed_second = ((second * scale).to(DTYPE).to(tl.float32) * high).to(DTYPE).to(tl.float32)
    return tl.where(chosen[:, None], normed, first), tl.where(chosen[:, None], normed_second, second)


def launch(
    qkv: Tensor,
    cache: Tensor,
    cosines: Tensor,
    sines: Tensor,
    positions: Tensor,
    slots: Tensor,
    query_heads: int,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 0.0,
) -> None:
    """The law of :func:`kernels.rope_and_cache.reference.rope_and_cache` on the device of ``qkv``.

    Positions and slots are read on the device and not checked: the caller owns page table and tables.

    Raises:
        ValueError: A tensor that the kernel would misread.
    """
    rows, heads, head_dim = _check(qkv, cache, query_heads)
    kv_heads = cache.shape[2]
    integers = (torch.int32, torch.int64)
    for name, table in (("cosines", cosines), ("sines", sines)):
        shape = (None, head_dim // 2)
        require(name, table, shape=shape, dtypes=(torch.float32,), device=qkv.device)
    for name, index in (("positions", positions), ("slots", slots)):
        require(name, index, shape=(rows,), dtypes=integers, device=qkv.device)
    for name, norm in (("q_norm", q_norm), ("k_norm", k_norm)):
        if norm is not None:
            require(name, norm, shape=(head_dim,), dtypes=(qkv.dtype,), device=qkv.device)
    if not rows:
        return
    per_program = head_count(head_dim)
    rope_and_cache_kernel[(rows, -(-heads // per_program))](
        qkv,
        cache,
        cosines,
        sines,
        positions,
        slots,
        qkv if q_norm is None else q_norm,
        qkv if k_norm is None else k_norm,
        eps,
        qkv.stride(0),
        H=query_heads,
        KV=kv_heads,
        D=head_dim,
        HALF=power_of_two(head_dim // 2),
        HEADS=per_program,
        HAS_Q_NORM=q_norm is not None,
        HAS_K_NORM=k_norm is not None,
        num_warps=4,
    )


def head_count(head_dim: int) -> int:
    """Heads a program."""
    return max(_ELEMENTS // 2 // power_of_two(head_dim // 2), 1)


def _check(qkv: Tensor, cache: Tensor, query_heads: int) -> tuple[int, int, int]:
    require("qkv", qkv, shape=(None, None, None), dtypes=FLOATS, device=qkv.device, rows_contiguous=True)
    rows, heads, head_dim = qkv.shape
    if head_dim % 2:
        raise ValueError(f"heads have {head_dim} dimensions; rotary positions turn pairs, so it must be even")
    if rows and qkv.stride(1) != head_dim:
        raise ValueError(f"qkv has strides {qkv.stride()}; the heads of a row must be contiguous")
    kv_heads = (heads - query_heads) // 2
    if not 0 < query_heads < heads or (heads - query_heads) % 2:
        raise ValueError(f"qkv has {heads} heads; with {query_heads} query heads, as many keys as values")
    shape = (None, 2, kv_heads, head_dim)
    require("cache", cache, shape=shape, dtypes=FLOATS, device=qkv.device)
    return rows, heads, head_dim
