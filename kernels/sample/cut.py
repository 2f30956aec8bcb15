# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,no-any-return"
# Triton's language has no types that a checker knows.
"""Filters without sorting: each keeps a prefix of the order (logit falling, id rising).

So all of them together are one cut: a depth and, among tokens of exactly this depth, a highest id. It lies in
the bracket of which the tokens were listed, and is found in one of three ways. Of few tokens each learns
its rank, and the mass before it, by comparison with all others. Tokens of one single depth are told apart by
their ids, which rise with the splits. The rest is searched in rounds.
"""

import triton
import triton.language as tl

from kernels.sample.bracket import DRAWN, FEW, FIELDS, FIRST, LAST, SIZE
from kernels.sample.depth import DEEPEST, depth_of, mass_of, scaled, share_of
from kernels.sample.leader import lead
from kernels.sample.noise import gumbel_of
from kernels.sample.search import amount_up_to, find_cut

_STEP = tl.constexpr(32)  # tokens with which all of the few are compared at once
_ID_BITS = tl.constexpr(18)
_ID_MASK = tl.constexpr((1 << 18) - 1)
_RANK = tl.constexpr(1 << 50)  # ranks are counted above the mass of 256 tokens
_DRAWN_AT_ONCE = tl.constexpr(2048)  # listed tokens of which this program draws; of more, the whole grid does


@triton.jit
def cut(
    logits,
    shaped_best,
    temperature,
    top_k,
    top_p,
    log_min_p,
    seeds,
    positions,
    search,
    list_ids,
    list_values,
    kept_counts,
    kept_mass,
    listed_counts,
    shallowest,
    deepest,
    mass,
    best,
    best_id,
    cut_depth,
    cut_id,
    leader,
    scores,
    score_ids,
    drawn_mass,
    splits,
    row_stride,
    V: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_SPLITS: tl.constexpr,
):
    """Grid ``(B,)``: the cut of each row, and the draw of rows that keep only listed and not many tokens.

    Such a draw is noted as that of the first split; other rows get a leader.
    """
    row = tl.program_id(0).to(tl.int64)
    state = search + row * FIELDS
    heat = tl.load(temperature + row)
    depth = tl.where(heat > 0, depth_of(tl.load(log_min_p + row)), DEEPEST)
    highest = tl.zeros((), tl.int32) + V
    drawn = tl.zeros((), tl.int32)
    if tl.load(state + LAST) >= 0:
        size, first = tl.load(state + SIZE), tl.load(state + FIRST)
        ids, values = list_ids + row * V, list_values + row * V
        parts = tl.arange(0, BLOCK_SPLITS)
        places, live = row * splits + parts, parts < splits
        above = tl.sum(tl.load(kept_counts + places, mask=live, other=0), 0)
        above_mass = tl.sum(tl.load(kept_mass + places, mask=live, other=0), 0)
        low = tl.min(tl.load(shallowest + places, mask=live, other=DEEPEST), 0)
        high = tl.max(tl.load(deepest + places, mask=live, other=0), 0)
        count, share = tl.load(top_k + row), tl.load(top_p + row)
        # Top-k off is a count that nothing reaches.
        count = tl.where(count > 0, count - above, V)
        if size <= FEW:
            depth, highest = _cut_few(ids, values, size, first, count, share, above_mass, mass, top_k, row, V)
        elif low == high:
            depth = low
            listed = tl.load(listed_counts + places, mask=live, other=0)
            number = _ties_kept(
                size, depth.to(tl.float32, bitcast=True), count, share, above_mass, mass, top_k, row
            )
            if number < size:
                through = tl.cumsum(listed, 0)
                split = tl.sum((through < number).to(tl.int32), 0)
                number -= tl.sum(tl.where(parts < split, listed, 0), 0)
                tokens = split * BLOCK + tl.arange(0, BLOCK)
                source = logits + row * row_stride + tokens
                own = scaled(
                    tl.load(source, mask=tokens < V, other=float("-inf")), tl.load(shaped_best + row), heat
                )
                tied = (depth_of(own) == depth).to(tl.int32)
                highest = tl.min(tl.where(tl.cumsum(tied, 0) >= number, tokens, V), 0)
        else:
            depth = high
            total = tl.load(mass + row)
            if tl.load(top_k + row) > 0:
                depth, highest = find_cut(
                    ids, values, size, count.to(tl.int64), low, high, depth, highest, V, False
                )
                total = above_mass + amount_up_to(ids, values, size, depth, highest, True)
            if share < 1:
                wanted = share_of(total, share) - above_mass
                depth, highest = find_cut(ids, values, size, wanted, low, depth, depth, highest, V, True)
        if (first == 0) & (size <= _DRAWN_AT_ONCE):
            drawn += 1
            _draw_listed(
                ids,
                values,
                size,
                depth,
                highest,
                tl.load(seeds + row),
                tl.load(positions + row),
                scores + row * splits,
                score_ids + row * splits,
                drawn_mass + row * splits,
                V,
            )
    if (drawn == 0) & (heat > 0):
        top = tl.load(shaped_best + row)
        lead(best, best_id, leader, top, heat, seeds, positions, depth, highest, row, splits, V, BLOCK_SPLITS)
    tl.store(cut_depth + row, depth)
    tl.store(cut_id + row, highest)
    tl.store(state + DRAWN, drawn)


@triton.jit
def _cut_few(ids, values, size, first, count, share, above_mass, mass, top_k, row, V: tl.constexpr):
    """The cut among at most 256 listed tokens; just above the bracket if it keeps none of them."""
    places = tl.arange(0, FEW)
    live = places < size
    token = tl.load(ids + places, mask=live, other=0)
    value = tl.load(values + places, mask=live, other=float("-inf"))
    key = _key(value, token)
    before = tl.zeros_like(key)
    for start in range(0, size, _STEP):
        others = start + tl.arange(0, _STEP)
        there = others < size
        other_value = tl.load(values + others, mask=there, other=float("-inf"))
        other_key = _key(other_value, tl.load(ids + others, mask=there, other=0))
        amount = tl.where(there, mass_of(other_value) + _RANK, 0)
        # Others along the first axis: each thread adds up for a token of its own.
        before += tl.sum(tl.where(other_key[:, None] < key[None, :], amount[:, None], 0), 0)
    kept = live & (before // _RANK < count)
    if share < 1:
        total = tl.load(mass + row)
        if tl.load(top_k + row) > 0:
            total = above_mass + tl.sum(tl.where(kept, mass_of(value), 0), 0)
        kept = kept & (before % _RANK < share_of(total, share) - above_mass)
    key = tl.max(tl.where(kept, key, -1), 0)
    depth = tl.where(key < 0, first - 1, (key >> _ID_BITS).to(tl.int32))
    return depth, tl.where(key < 0, V, (key & _ID_MASK).to(tl.int32))


@triton.jit
def _key(value, token):
    """One number that rises in the order of the filters."""
    return (depth_of(value).to(tl.int64) << _ID_BITS) + token


@triton.jit
def _ties_kept(size, down, count, share, above_mass, mass, top_k, row):
    """How many of the listed tokens stay, all of one depth."""
    number, weight = tl.minimum(count, size), mass_of(-down)
    if share < 1:
        total = tl.load(mass + row)
        if tl.load(top_k + row) > 0:
            total = above_mass + number * weight
        wanted = share_of(total, share) - above_mass
        number = tl.minimum(number, tl.cdiv(wanted, tl.maximum(weight, 1)).to(tl.int32))
    return number


@triton.jit
def _draw_listed(
    ids, values, size, depth, highest, seed, position, scores, score_ids, drawn_mass, V: tl.constexpr
):
    """Draws among the listed tokens of the cut."""
    score, score_id = tl.full((), float("-inf"), tl.float32), tl.zeros((), tl.int32) + V
    weight = tl.zeros((), tl.int64)
    for start in range(0, size, FEW):
        places = start + tl.arange(0, FEW)
        live = places < size
        token = tl.load(ids + places, mask=live, other=0)
        value = tl.load(values + places, mask=live, other=float("-inf"))
        own = depth_of(value)
        kept = live & ((own < depth) | ((own == depth) & (token <= highest)))
        noisy = tl.where(kept, value + gumbel_of(seed, position, token), float("-inf"))
        best = tl.max(noisy, 0)
        best_id = tl.min(tl.where(noisy == best, token, V), 0)
        wins = (best > score) | ((best == score) & (best_id < score_id))
        score, score_id = tl.where(wins, best, score), tl.where(wins, best_id, score_id)
        weight += tl.sum(tl.where(kept, mass_of(value), 0), 0)
    tl.store(scores, score)
    tl.store(score_ids, score_id)
    tl.store(drawn_mass, weight)
