# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,no-any-return"
# Triton's language has no types that a checker knows.
"""Filters without sorting: each keeps a prefix of the order (logit falling, id rising).

So all of them together are one cut: a value and, among tokens of exactly this value, a highest id. A
histogram of the scaled logits bounds the cut from below, the tokens above the bound are collected, usually
some hundred, and the cut is found among them by bisection.

Scaled logits are 0 for the best token and negative for others. The *depth* of a token is the bit pattern of
its negated scaled logit, an integer that rises as the logit falls. Probability mass is counted in integers,
units of 2**-40 of the best token, so that sums do not depend on their order.
"""

import triton
import triton.language as tl

BINS = tl.constexpr(2048)
_BINS_A_NAT = tl.constexpr(64.0)
_LOWEST = tl.constexpr(-3.4028234663852886e38)
_DEEPEST = tl.constexpr(0x7F7FFFFF)  # depth of the lowest finite number
_MASS_UNITS = tl.constexpr(float(1 << 40))
_CHUNK = tl.constexpr(1024)


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
def _bin_of(value):
    return tl.minimum(-value * _BINS_A_NAT, BINS - 1.0).to(tl.int32)


@triton.jit
def _wants_cut(row, temperature, top_k, top_p):
    """Whether the cut of this row must be searched for; a floor alone is a cut already."""
    return (tl.load(temperature + row) > 0) & ((tl.load(top_k + row) > 0) | (tl.load(top_p + row) < 1))


@triton.jit
def histogram(
    logits,
    shaped_best,
    temperature,
    top_k,
    top_p,
    log_min_p,
    bins,
    mass,
    row_stride,
    V: tl.constexpr,
    BLOCK: tl.constexpr,
    STEPS: tl.constexpr,
):
    """Grid ``(B, splits)`` of ``BLOCK * STEPS`` tokens: adds to ``bins (B, BINS)`` and ``mass (B,)``."""
    row, split = tl.program_id(0), tl.program_id(1)
    if _wants_cut(row, temperature, top_k, top_p):
        best, heat, floor = tl.load(shaped_best + row), tl.load(temperature + row), tl.load(log_min_p + row)
        found = tl.zeros((BINS,), tl.int32)
        weight = tl.zeros((BLOCK,), tl.int64)
        for step in range(STEPS):
            ids = (split * STEPS + step) * BLOCK + tl.arange(0, BLOCK)
            values = tl.load(logits + row.to(tl.int64) * row_stride + ids, mask=ids < V, other=float("-inf"))
            value = scaled(values, best, heat)
            kept = value >= floor
            value = tl.where(kept, value, _LOWEST)
            found += tl.histogram(_bin_of(value), BINS, mask=kept)
            weight += tl.where(kept, mass_of(value), 0)
        places = tl.arange(0, BINS)
        tl.atomic_add(bins + row * BINS + places, found, mask=found > 0, sem="relaxed")
        tl.atomic_add(mass + row, tl.sum(weight, 0), sem="relaxed")


@triton.jit
def bound(temperature, top_k, top_p, bins, mass, last_bin):
    """Grid ``(B,)``: the last bin that the cut may lie in."""
    row = tl.program_id(0)
    if _wants_cut(row, temperature, top_k, top_p):
        places = tl.arange(0, BINS)
        found = tl.load(bins + row * BINS + places)
        wanted_count = tl.load(top_k + row)
        if wanted_count > 0:
            reached = tl.cumsum(found, 0) >= wanted_count
        else:
            # The least mass that the tokens of a bin can have; the last bin has no lower end.
            least = found.to(tl.float32) * tl.exp(-(places + 1).to(tl.float32) / _BINS_A_NAT)
            least = tl.where(places < BINS - 1, least, 0.0)
            total = (tl.load(mass + row).to(tl.float64) / _MASS_UNITS * tl.load(top_p + row)).to(tl.float32)
            # The margin covers the rounding of a float32 sum of 2,048 terms.
            reached = tl.cumsum(least, 0) >= total * 1.001
        tl.store(last_bin + row, tl.min(tl.where(reached, places, BINS - 1), 0))


@triton.jit
def collect(
    logits,
    shaped_best,
    temperature,
    top_k,
    top_p,
    log_min_p,
    last_bin,
    list_ids,
    list_values,
    list_sizes,
    row_stride,
    V: tl.constexpr,
    BLOCK: tl.constexpr,
    STEPS: tl.constexpr,
):
    """Grid ``(B, splits)``: appends the tokens up to the last bin to ``(B, V)`` lists, in any order."""
    row, split = tl.program_id(0), tl.program_id(1)
    if _wants_cut(row, temperature, top_k, top_p):
        best, heat, floor = tl.load(shaped_best + row), tl.load(temperature + row), tl.load(log_min_p + row)
        last = tl.load(last_bin + row)
        for step in range(STEPS):
            ids = (split * STEPS + step) * BLOCK + tl.arange(0, BLOCK)
            values = tl.load(logits + row.to(tl.int64) * row_stride + ids, mask=ids < V, other=float("-inf"))
            value = scaled(values, best, heat)
            kept = value >= floor
            kept = kept & (_bin_of(tl.where(kept, value, _LOWEST)) <= last)
            count = tl.sum(kept.to(tl.int32), 0)
            if count > 0:
                begin = tl.atomic_add(list_sizes + row, count, sem="relaxed")
                places = row.to(tl.int64) * V + begin + tl.cumsum(kept.to(tl.int32), 0) - 1
                tl.store(list_ids + places, ids, mask=kept)
                tl.store(list_values + places, value, mask=kept)


@triton.jit
def _amount(ids, values, size, depth, highest_id, outer_depth, outer_id, BY_MASS: tl.constexpr):
    """Tokens, or their mass, up to a cut and within an outer cut."""
    amount = tl.zeros((_CHUNK,), tl.int64)
    for start in range(0, size, _CHUNK):
        places = start + tl.arange(0, _CHUNK)
        mask = places < size
        token = tl.load(ids + places, mask=mask, other=0)
        value = tl.load(values + places, mask=mask, other=_LOWEST)
        own = depth_of(value)
        kept = mask & ((own < depth) | ((own == depth) & (token <= highest_id)))
        kept = kept & ((own < outer_depth) | ((own == outer_depth) & (token <= outer_id)))
        if BY_MASS:
            amount += tl.where(kept, mass_of(value), 0)
        else:
            amount += kept.to(tl.int64)
    return tl.sum(amount, 0)


@triton.jit
def _cut(ids, values, size, wanted, outer_depth, outer_id, V: tl.constexpr, BY_MASS: tl.constexpr):
    """The first cut that holds the wanted amount, or all there is: (depth, highest id at this depth)."""
    low, high = tl.zeros((), tl.int32), tl.zeros((), tl.int32) + _DEEPEST
    while low < high:
        middle = low + (high - low) // 2
        enough = _amount(ids, values, size, middle, V, outer_depth, outer_id, BY_MASS) >= wanted
        high = tl.where(enough, middle, high)
        low = tl.where(enough, low, middle + 1)
    depth = low
    low, high = tl.zeros((), tl.int32), tl.zeros((), tl.int32) + V
    # Without its last token the cut holds too little, unless tokens of equal value are left over.
    spare = _amount(ids, values, size, depth, V, outer_depth, outer_id, BY_MASS) - wanted
    if spare > 0:
        while low < high:
            middle = low + (high - low) // 2
            enough = _amount(ids, values, size, depth, middle, outer_depth, outer_id, BY_MASS) >= wanted
            high = tl.where(enough, middle, high)
            low = tl.where(enough, low, middle + 1)
    return depth, high


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
            total = _amount(ids, values, size, depth, highest, depth, highest, True)
        if share < 1:
            wanted = tl.ceil(total.to(tl.float64) * share).to(tl.int64)
            depth, highest = _cut(ids, values, size, wanted, depth, highest, V, True)
    tl.store(cut_depth + row, depth)
    tl.store(cut_id + row, highest)
