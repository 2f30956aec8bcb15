# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,no-any-return"
# Triton's language has no types that a checker knows.
"""Filters without sorting: each keeps a prefix of the order (logit falling, id rising).

So all of them together are one cut: a value and, among tokens of exactly this value, a highest id. The first
pass noted the best logit of every group of 128 tokens. They are tokens too, so the cut that holds enough *of
them* lies at or below the one sought. The tokens above it are collected, usually hardly more than are kept,
and the cut is searched for among them, sixteen guesses at a time. Where the best of groups do not hold
enough, as in a flat nucleus of thousands, every token is collected: right, but slow.

Scaled logits are 0 for the best token and negative for others. The *depth* of a token is the bit pattern of
its negated scaled logit, an integer that rises as the logit falls. Probability mass is counted in integers,
units of 2**-40 of the best token, so that sums do not depend on their order.
"""

import triton
import triton.language as tl

_LOWEST = tl.constexpr(-3.4028234663852886e38)
_DEEPEST = tl.constexpr(0x7F7FFFFF)  # depth of the lowest finite number
_MASS_UNITS = tl.constexpr(float(1 << 40))
_CHUNK = tl.constexpr(512)
_WAYS = tl.constexpr(16)  # cuts tried at once


@triton.jit
def scaled(values, best, temperature):
    """Scaled logits; greedy rows are left at temperature 1."""
    divisor = tl.where(temperature == 0, 1.0, temperature) + tl.zeros_like(values)
    return tl.div_rn(values - best, divisor)


@triton.jit
def depth_of(value):
    """An integer that rises as the scaled logit falls; minus zero counts as zero."""
    return tl.where(value == 0, 0.0, -value).to(tl.int32, bitcast=True)


@triton.jit
def mass_of(value):
    """Weight of a scaled logit in integer units."""
    return (tl.exp(value) * _MASS_UNITS).to(tl.int64)


@triton.jit
def _wants_cut(row, temperature, top_k, top_p):
    """Whether the cut of this row must be searched for; a floor alone is a cut already."""
    return (tl.load(temperature + row) > 0) & ((tl.load(top_k + row) > 0) | (tl.load(top_p + row) < 1))


@triton.jit
def weigh(
    logits,
    shaped_best,
    temperature,
    top_k,
    top_p,
    log_min_p,
    mass,
    row_stride,
    V: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Grid ``(B, splits)`` of BLOCK tokens: adds to ``mass (B,)`` where top-p needs that of a whole row."""
    row, split = tl.program_id(0), tl.program_id(1)
    if _wants_cut(row, temperature, top_k, top_p) & (tl.load(top_k + row) == 0):
        ids = split * BLOCK + tl.arange(0, BLOCK)
        values = tl.load(logits + row.to(tl.int64) * row_stride + ids, mask=ids < V, other=float("-inf"))
        value = scaled(values, tl.load(shaped_best + row), tl.load(temperature + row))
        weight = tl.where(value >= tl.load(log_min_p + row), mass_of(value), 0)
        tl.atomic_add(mass + row, tl.sum(weight, 0), sem="relaxed")


@triton.jit
def _amounts(ids, values, size, depths, highest_ids, outer_depth, outer_id, BY_MASS: tl.constexpr):
    """Tokens, or their mass, up to each of several cuts and within an outer cut; (WAYS,) int64."""
    amounts = tl.zeros_like(depths).to(tl.int64)
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
            amount = mask.to(tl.int64)
        at_cut = (own[None, :] == depths[:, None]) & (token[None, :] <= highest_ids[:, None])
        kept = (own[None, :] < depths[:, None]) | at_cut
        amounts += tl.sum(tl.where(kept, amount[None, :], 0), 1)
    return amounts


@triton.jit
def _narrowed(amounts, wanted, low, high, step):
    """The part of [low, high] that holds the first place with enough, from amounts at its ends of parts."""
    parts = tl.sum((amounts < wanted).to(tl.int32), 0)
    return tl.minimum(low + parts * step, high), tl.minimum(low + parts * step + step - 1, high)


@triton.jit
def _depth(ids, values, size, wanted, outer_depth, outer_id, V: tl.constexpr, BY_MASS: tl.constexpr):
    """The first depth up to which tokens hold the wanted amount, or the deepest."""
    ways = tl.arange(0, _WAYS) + 1
    everything = tl.zeros_like(ways) + V
    low, high = tl.zeros((), tl.int32), tl.zeros((), tl.int32) + _DEEPEST
    while low < high:
        step = (high - low) // _WAYS + 1
        ends = tl.minimum(low + ways * step - 1, high)
        amounts = _amounts(ids, values, size, ends, everything, outer_depth, outer_id, BY_MASS)
        low, high = _narrowed(amounts, wanted, low, high, step)
    return low


@triton.jit
def _cut(ids, values, size, wanted, outer_depth, outer_id, V: tl.constexpr, BY_MASS: tl.constexpr):
    """The first cut that holds the wanted amount, or all there is: (depth, highest id at this depth)."""
    ways = tl.arange(0, _WAYS) + 1
    everything = tl.zeros_like(ways) + V
    depth = _depth(ids, values, size, wanted, outer_depth, outer_id, V, BY_MASS)
    low, high = tl.zeros((), tl.int32), tl.zeros((), tl.int32) + V
    depths = tl.zeros_like(ways) + depth
    amounts = _amounts(ids, values, size, depths, everything, outer_depth, outer_id, BY_MASS)
    # More than wanted: perhaps tokens of equal value are left over.
    if tl.max(amounts, 0) > wanted:
        while low < high:
            step = (high - low) // _WAYS + 1
            ends = tl.minimum(low + ways * step - 1, high)
            amounts = _amounts(ids, values, size, depths, ends, outer_depth, outer_id, BY_MASS)
            low, high = _narrowed(amounts, wanted, low, high, step)
    return depth, high


@triton.jit
def bound(
    group_best,
    shaped_best,
    temperature,
    top_k,
    top_p,
    log_min_p,
    mass,
    list_ids,
    list_values,
    last_depth,
    groups,
    group_stride,
    V: tl.constexpr,
):
    """Grid ``(B,)``: a depth that the cut does not exceed; the lists are scratch memory here."""
    row = tl.program_id(0)
    if _wants_cut(row, temperature, top_k, top_p):
        ids, values = list_ids + row.to(tl.int64) * V, list_values + row.to(tl.int64) * V
        for start in range(0, groups, _CHUNK):
            places = start + tl.arange(0, _CHUNK)
            best = tl.load(group_best + row * group_stride + places, mask=places < groups, other=0.0)
            value = scaled(best, tl.load(shaped_best + row), tl.load(temperature + row))
            tl.store(ids + places, places, mask=places < groups)
            tl.store(values + places, value, mask=places < groups)
        # Every warp reads what others wrote.
        tl.debug_barrier()
        floor = depth_of(tl.load(log_min_p + row))
        count = tl.load(top_k + row)
        if count > 0:
            depth = _depth(ids, values, groups, count.to(tl.int64), floor, V, V, False)
        else:
            depth = _depth(ids, values, groups, _share(mass, top_p, row), floor, V, V, True)
        tl.store(last_depth + row, depth)


@triton.jit
def _share(mass, top_p, row):
    """The mass that top-p asks of a whole row."""
    return tl.ceil(tl.load(mass + row).to(tl.float64) * tl.load(top_p + row)).to(tl.int64)


@triton.jit
def collect(
    logits,
    shaped_best,
    temperature,
    top_k,
    top_p,
    log_min_p,
    last_depth,
    list_ids,
    list_values,
    list_sizes,
    row_stride,
    V: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Grid ``(B, splits)``: appends the tokens up to the last depth to ``(B, V)`` lists, in any order."""
    row, split = tl.program_id(0), tl.program_id(1)
    if _wants_cut(row, temperature, top_k, top_p):
        ids = split * BLOCK + tl.arange(0, BLOCK)
        values = tl.load(logits + row.to(tl.int64) * row_stride + ids, mask=ids < V, other=float("-inf"))
        value = scaled(values, tl.load(shaped_best + row), tl.load(temperature + row))
        kept = (value >= tl.load(log_min_p + row)) & (depth_of(value) <= tl.load(last_depth + row))
        count = tl.sum(kept.to(tl.int32), 0)
        if count > 0:
            begin = tl.atomic_add(list_sizes + row, count, sem="relaxed")
            places = row.to(tl.int64) * V + begin + tl.cumsum(kept.to(tl.int32), 0) - 1
            tl.store(list_ids + places, ids, mask=kept)
            tl.store(list_values + places, value, mask=kept)


@triton.jit
def select(
    temperature,
    top_k,
    top_p,
    log_min_p,
    mass,
    list_ids,
    list_values,
    list_sizes,
    cut_depth,
    cut_id,
    V: tl.constexpr,
):
    """Grid ``(B,)``: the cut of each row."""
    row = tl.program_id(0)
    depth = depth_of(tl.load(log_min_p + row))
    highest = tl.zeros((), tl.int32) + V
    if _wants_cut(row, temperature, top_k, top_p):
        ids, values = list_ids + row.to(tl.int64) * V, list_values + row.to(tl.int64) * V
        size = tl.load(list_sizes + row)
        count, share = tl.load(top_k + row), tl.load(top_p + row)
        total = tl.load(mass + row)
        if count > 0:
            depth, highest = _cut(ids, values, size, count.to(tl.int64), depth, highest, V, False)
            depths = tl.zeros((_WAYS,), tl.int32) + depth
            limits = tl.zeros((_WAYS,), tl.int32) + highest
            total = tl.max(_amounts(ids, values, size, depths, limits, depth, highest, True), 0)
        if share < 1:
            wanted = tl.ceil(total.to(tl.float64) * share).to(tl.int64)
            depth, highest = _cut(ids, values, size, wanted, depth, highest, V, True)
    tl.store(cut_depth + row, depth)
    tl.store(cut_id + row, highest)
