"""The law of rotary positions and the cache write, in float32, row by row."""

import torch
from torch import Tensor


def rope_and_cache(
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
    """Norms and turns queries and keys, and writes keys and values to their slots; changes qkv and cache.

    Element i < D / 2 of a head turns with element i + D / 2:
    ``(a cos - b sin, b cos + a sin)``, rounded once to the type of ``qkv``. The norm before it rounds as
    :mod:`kernels.rms_norm` does.

    Args:
        qkv: ``(N, H + 2 KV, D)``: query heads, key heads, value heads. Query heads are turned in place.
        cache: ``(slots, 2, KV, D)``, keys and values of one layer.
        cosines: float32 ``(P, D / 2)``, a row a position.
        sines: float32 ``(P, D / 2)``.
        positions: ``(N,)`` integers in ``[0, P)``.
        slots: ``(N,)`` integers; a negative one is written nowhere.
        query_heads: H.
        q_norm: ``(D,)`` or ``None`` = no norm.
        k_norm: ``(D,)`` or ``None`` = no norm.
        eps: Of the norms.
    """
    kv_heads = cache.shape[2]
    cosine, sine = (table[positions.long()][:, None] for table in (cosines, sines))
    queries = qkv[:, :query_heads]
    queries.copy_(_turn(_norm(queries, q_norm, eps), cosine, sine))
    keys = _turn(_norm(qkv[:, query_heads:-kv_heads], k_norm, eps), cosine, sine).to(qkv.dtype)
    for row, slot in enumerate(slots.tolist()):
        if slot >= 0:
            cache[slot, 0] = keys[row]
            cache[slot, 1] = qkv[row, -kv_heads:]


def _norm(heads: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    if weight is None:
        return heads
    wide = heads.float()
    scaled = (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(heads.dtype)
    return (scaled.float() * weight.float()).to(heads.dtype)


def _turn(heads: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    first, second = heads.float().chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)
