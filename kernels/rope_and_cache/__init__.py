"""Rotary positions on queries and keys, with their norms before, and the write of keys and values."""

from torch import Tensor

from kernels.rope_and_cache import reference

__all__ = ["rope_and_cache"]


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
    """Turns queries in place, and writes turned keys and values to the cache.

    Args:
        qkv: ``(N, H + 2 KV, D)``: query heads, key heads, value heads; heads of a row contiguous.
        cache: ``(slots, 2, KV, D)``, keys and values of one layer.
        cosines: float32 ``(P, D / 2)``, a row a position.
        sines: float32 ``(P, D / 2)``.
        positions: int32 or int64 ``(N,)`` in ``[0, P)``.
        slots: int32 or int64 ``(N,)``; a negative one is written nowhere. Slots are distinct.
        query_heads: H.
        q_norm: ``(D,)`` or ``None`` = no norm.
        k_norm: ``(D,)`` or ``None`` = no norm.
        eps: Of the norms.

    Raises:
        ValueError: On a GPU, a tensor of the wrong shape, type, device or stride.
    """
    arguments = (qkv, cache, cosines, sines, positions, slots, query_heads, q_norm, k_norm, eps)
    if not qkv.is_cuda:
        reference.rope_and_cache(*arguments)
        return
    from kernels.rope_and_cache.kernel import launch

    launch(*arguments)
