# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,no-any-return"
# Triton's language has no types that a checker knows.
"""Brackets of the cut: depths above which every token is surely kept and below which none is.

A bracket starts with everything and is narrowed before any token is collected. For a small top-k, the best
of every group of 128 tokens, which the first pass noted, are tokens too, so the cut that holds k *of them*
lies at or below the one sought. Everything else is narrowed by passes over the vocabulary: they count the
tokens in 256 bins of equal width. A bin's count bounds its mass, and the mass of the whole bracket is summed
exactly, so the bins that may hold the cut are known for certain. The width of bins is a power of two, hence
their edges are exact. The second pass looks only at rows of which the first left thousands of tokens.
"""

import triton
import triton.language as tl

from kernels.sample.depth import MASS_UNITS, depth_of, exponent_of, mass_of, scaled, share_of, two_to

# The search of a row, int32.
FIELDS = tl.constexpr(8)
FIRST = tl.constexpr(0)  # tokens of smaller depth are kept
LAST = tl.constexpr(1)  # tokens of larger depth are dropped; -1 = nothing to search for
SCALE = tl.constexpr(2)  # bins are 2**-SCALE wide; -1 = narrow enough
BASE = tl.constexpr(3)  # number of the first bin, counted from depth 0
ABOVE = tl.constexpr(4)  # tokens of smaller depth than FIRST
SIZE = tl.constexpr(5)  # tokens collected
ARRIVALS = tl.constexpr(6)
DRAWN = tl.constexpr(7)  # whether the search has drawn the token too

FEW = tl.constexpr(256)
"""Tokens of which each can be compared with all others at once."""
BINS = tl.constexpr(256)
_SMALL_TOP_K = tl.constexpr(128)
_ENOUGH = tl.constexpr(2048)  # tokens of a bracket that need no second pass
_HORIZON = tl.constexpr(32.0)  # no token further below the best has any mass
_FINEST = tl.constexpr(20)
_FAR = tl.constexpr(1073741824.0)
# Exponentials err by less than 2**-18.
_MOST = tl.constexpr(1.0 + 2.0**-16)
_LEAST = tl.constexpr(1.0 - 2.0**-16)


@triton.jit
def wants_cut(row, temperature, top_k, top_p):
    """Whether the cut of this row must be searched for; a floor alone is a cut already."""
    return (tl.load(temperature + row) > 0) & ((tl.load(top_k + row) > 0) | (tl.load(top_p + row) < 1))


@triton.jit
def start_search(
    search,
    group_best,
    shaped_top,
    heat,
    count,
    floor,
    V: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_GROUPS: tl.constexpr,
):
    """Writes the first bracket of a row; ``group_best`` points to the best of its groups."""
    groups: tl.constexpr = (V + GROUP - 1) // GROUP
    places = tl.arange(0, BLOCK_GROUPS)
    mask = places < groups
    # Edits were merged into them by atomics, which pass by the first cache.
    best = tl.load(group_best + places, mask=mask, other=float("-inf"), cache_modifier=".cg")
    down = tl.minimum(-scaled(best, shaped_top, heat), _HORIZON)
    spread = exponent_of(tl.sum(tl.where(mask, down, 0.0), 0) / groups)
    last = floor
    scale = tl.zeros((), tl.int32) - 1
    if (count > 0) & (count <= groups // 2) & (count <= _SMALL_TOP_K):
        # At most half of the groups can be further down than twice the mean.
        fine = tl.minimum(tl.maximum(6 - spread, 3), _FINEST)
        through = tl.cumsum(tl.histogram(_bin_of(down, fine, 0), BINS, mask=mask), 0)
        edge = tl.sum((through < count).to(tl.int32), 0) + 1
        last = tl.where(edge < BINS, tl.minimum(_edge(edge, fine) - 1, floor), floor)
    else:
        scale = tl.minimum(tl.maximum(5 - spread, 3), _FINEST)
    tl.store(search + FIRST, 0)
    tl.store(search + LAST, last)
    tl.store(search + SCALE, scale)
    tl.store(search + BASE, 0)
    tl.store(search + ABOVE, 0)
    tl.store(search + SIZE, 0)
    tl.store(search + ARRIVALS, 0)


@triton.jit
def _bin_of(down, scale, base):
    """The bin of a negated scaled logit; the last one has no end. Exact, for the scale is a power of two."""
    number = tl.minimum(down * two_to(scale), _FAR).to(tl.int32) - base
    return tl.minimum(tl.maximum(number, 0), BINS - 1)


@triton.jit
def _edge(number, scale):
    """The smallest depth of a bin, counted from depth 0."""
    return (number.to(tl.float32) * two_to(-scale)).to(tl.int32, bitcast=True)


@triton.jit
def narrow(
    logits,
    shaped_best,
    temperature,
    top_k,
    top_p,
    search,
    bin_counts,
    above_mass,
    inside_mass,
    mass,
    row_stride,
    V: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_SPLITS: tl.constexpr,
    ROUND: tl.constexpr,
):
    """Grid ``(B, splits)`` of BLOCK tokens: counts the bins of a bracket; the last of a row narrows it.

    ``bin_counts`` int32 ``(B, splits, 256)`` and the two int64 ``(B, splits)`` are scratch memory;
    ``mass (B,)`` is that of all tokens above the floor.
    """
    row, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    state = search + row * FIELDS
    scale, last = tl.load(state + SCALE), tl.load(state + LAST)
    if (last >= 0) & (scale >= 0):
        ids = split * BLOCK + tl.arange(0, BLOCK)
        values = tl.load(logits + row * row_stride + ids, mask=ids < V, other=float("-inf"))
        value = scaled(values, tl.load(shaped_best + row), tl.load(temperature + row))
        depth, first = depth_of(value), tl.load(state + FIRST)
        inside = (depth >= first) & (depth <= last)
        bins = _bin_of(-value, scale, tl.load(state + BASE))
        place = row * tl.num_programs(1) + split
        counts = tl.histogram(bins, BINS, mask=inside)
        tl.store(bin_counts + place * BINS + tl.arange(0, BINS), counts)
        weight = mass_of(value)
        tl.store(inside_mass + place, tl.sum(tl.where(inside, weight, 0), 0))
        if ROUND > 0:
            tl.store(above_mass + place, tl.sum(tl.where(depth < first, weight, 0), 0))
        tl.debug_barrier()  # Triton 3.6 puts none before an atomic that releases
        arrived = tl.atomic_add(state + ARRIVALS, 1, sem="acq_rel", scope="gpu")
        if arrived == tl.num_programs(1) - 1:
            _narrow_row(
                state, bin_counts, above_mass, inside_mass, mass, top_k, top_p, row, BLOCK_SPLITS, ROUND
            )


@triton.jit
def _narrow_row(
    state,
    bin_counts,
    above_mass,
    inside_mass,
    mass,
    top_k,
    top_p,
    row,
    BLOCK_SPLITS: tl.constexpr,
    ROUND: tl.constexpr,
):
    """Replaces the bracket of a row by the bins that may hold the cut."""
    splits = tl.num_programs(1)
    scale, base, old_last = tl.load(state + SCALE), tl.load(state + BASE), tl.load(state + LAST)
    count, share = tl.load(top_k + row), tl.load(top_p + row)
    parts, bins = tl.arange(0, BLOCK_SPLITS), tl.arange(0, BINS)
    places, live = row * splits + parts, parts < splits
    tile = bin_counts + places[:, None] * BINS + bins[None, :]
    counts = tl.sum(tl.load(tile, mask=live[:, None], other=0), 0)
    inside = tl.sum(tl.load(inside_mass + places, mask=live, other=0), 0)
    above, total, open_end = tl.zeros((), tl.int64), inside, ROUND == 0
    if ROUND > 0:
        above = tl.sum(tl.load(above_mass + places, mask=live, other=0), 0)
        total = tl.load(mass + row)
    else:
        tl.store(mass + row, inside)
    least, most = _mass_through(counts, inside, scale, base, open_end)
    above_count = tl.load(state + ABOVE)
    top_bin = tl.sum((above_count + tl.cumsum(counts, 0) < count).to(tl.int32), 0)
    if count > 0:
        # At least what the tokens weigh that top-k surely keeps.
        total = above + tl.max(tl.where(bins < top_bin, least, 0), 0)
    wanted = share_of(total, share) - above
    last = tl.where(count > 0, top_bin, tl.sum((least < wanted).to(tl.int32), 0))
    last = tl.minimum(last, BINS - 1)
    first = tl.where(share < 1, tl.sum((most < wanted).to(tl.int32), 0), last)
    first = tl.minimum(first, last)
    before = above_count + tl.sum(tl.where(bins < first, counts, 0), 0)
    left = tl.sum(tl.where((bins >= first) & (bins <= last), counts, 0), 0)
    finer = 8 - exponent_of((2 * (last - first) + 1).to(tl.float32))
    endless = open_end & (last == BINS - 1)
    again = (left > _ENOUGH) & (finer > 0) & (endless == 0)
    # Of few tokens all are listed, so that the draw needs no other.
    few = before + left <= FEW
    # Bins reach beyond a floor, which nothing may pass that is kept.
    new_first = tl.minimum(_edge(base + first, scale), old_last + 1)
    tl.store(state + FIRST, tl.where(few, 0, new_first))
    new_last = tl.minimum(_edge(base + last + 1, scale) - 1, old_last)
    tl.store(state + LAST, tl.where(endless, old_last, new_last))
    tl.store(state + ABOVE, tl.where(few, 0, before))
    tl.store(state + SCALE, tl.where(again, scale + finer, -1))
    tl.store(state + BASE, (base + first) << tl.maximum(finer, 0))
    tl.store(state + ARRIVALS, 0)


@triton.jit
def _mass_through(counts, inside, scale, base, open_end: tl.constexpr):
    """Bounds of the mass up to the end of each bin, from the count of each and the mass of the bracket."""
    bins = tl.arange(0, BINS)
    shallow = (base + bins).to(tl.float32) * two_to(-scale)
    deep = (base + bins + 1).to(tl.float32) * two_to(-scale)
    dear = counts * (tl.exp(-shallow) * (MASS_UNITS * _MOST)).to(tl.int64)
    cheap = counts * (tl.exp(-deep) * (MASS_UNITS * _LEAST)).to(tl.int64)
    if open_end:
        cheap = tl.where(bins == BINS - 1, 0, cheap)
    most, least = tl.cumsum(dear, 0), tl.cumsum(cheap, 0)
    # What is left of the whole bounds as well, and better where little is left.
    return (
        tl.maximum(least, inside - (tl.sum(dear, 0) - most)),
        tl.minimum(most, inside - (tl.sum(cheap, 0) - least)),
    )
