# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,no-any-return"
# Triton's language has no types that a checker knows.
"""Finds a cut among any number of listed tokens, in rounds of sixteen guesses.

A cut is a depth and, among tokens of exactly this depth, a highest id. The amount up to a cut is a number of
tokens, or their mass.
"""

import triton
import triton.language as tl

from kernels.sample.depth import depth_of, mass_of

_LOWEST = tl.constexpr(-3.4028234663852886e38)
_CHUNK = tl.constexpr(512)
_WAYS = tl.constexpr(16)  # cuts tried at once


@triton.jit
def amounts_up_to(ids, values, size, depths, highest_ids, outer_depth, outer_id, BY_MASS: tl.constexpr):
    """Tokens, or their mass, up to each of several cuts and within an outer cut; int64."""
    # Threads add up for themselves until the end, where they cost most.
    amounts = tl.zeros((depths.shape[0], _CHUNK), tl.int64)
    for start in range(0, size, _CHUNK):
        places = start + tl.arange(0, _CHUNK)
        mask = places < size
        token = tl.load(ids + places, mask=mask, other=0)
        value = tl.load(values + places, mask=mask, other=_LOWEST)
        own = depth_of(value)
        mask = mask & ((own < outer_depth) | ((own == outer_depth) & (token <= outer_id)))
        if BY_MASS:
            amount = tl.where(mask, mass_of(value), 0)
        else:
            amount = mask.to(tl.int32)
        at_cut = (own[None, :] == depths[:, None]) & (token[None, :] <= highest_ids[:, None])
        kept = (own[None, :] < depths[:, None]) | at_cut
        amounts += tl.where(kept, amount[None, :], 0)
    return tl.sum(amounts, 1)


@triton.jit
def amount_up_to(ids, values, size, depth, highest_id, BY_MASS: tl.constexpr):
    """Tokens, or their mass, up to one cut; int64."""
    one = tl.zeros((1,), tl.int32)
    return tl.sum(
        amounts_up_to(ids, values, size, one + depth, one + highest_id, depth, highest_id, BY_MASS), 0
    )


@triton.jit
def find_cut(
    ids, values, size, wanted, low, high, outer_depth, outer_id, V: tl.constexpr, BY_MASS: tl.constexpr
):
    """The first cut that holds the wanted amount, or all there is: (depth, highest id at this depth).

    Its depth is sought from ``low`` to ``high``, among tokens within an outer cut.
    """
    ways = tl.arange(0, _WAYS) + 1
    everything = tl.zeros_like(ways) + V
    while low < high:
        step = (high - low) // _WAYS + 1
        ends = tl.minimum(low + ways * step - 1, high)
        amounts = amounts_up_to(ids, values, size, ends, everything, outer_depth, outer_id, BY_MASS)
        low, high = _narrowed(amounts, wanted, low, high, step)
    depth = low
    low, high = tl.zeros((), tl.int32), tl.zeros((), tl.int32) + V
    depths = tl.zeros_like(ways) + depth
    amounts = amounts_up_to(ids, values, size, depths, everything, outer_depth, outer_id, BY_MASS)
    # More than wanted: perhaps tokens of equal value are left over.
    if tl.max(amounts, 0) > wanted:
        while low < high:
            step = (high - low) // _WAYS + 1
            ends = tl.minimum(low + ways * step - 1, high)
            amounts = amounts_up_to(ids, values, size, depths, ends, outer_depth, outer_id, BY_MASS)
            low, high = _narrowed(amounts, wanted, low, high, step)
    return depth, high


@triton.jit
def _narrowed(amounts, wanted, low, high, step):
    """The part of [low, high] that holds the first place with enough, from amounts at its ends of parts."""
    parts = tl.sum((amounts < wanted).to(tl.int32), 0)
    return tl.minimum(low + parts * step, high), tl.minimum(low + parts * step + step - 1, high)
