# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,no-any-return"
# Triton's language has no types that a checker knows.
"""Collects the tokens of a bracket, and how many lie above it with what mass."""

import triton
import triton.language as tl

from kernels.sample.bracket import FIELDS, FIRST, LAST, SIZE
from kernels.sample.depth import DEEPEST, depth_of, mass_of, scaled

_PIECE = tl.constexpr(1024)


@triton.jit
def collect(
    logits,
    group_best,
    shaped_best,
    temperature,
    search,
    list_ids,
    list_values,
    kept_counts,
    kept_mass,
    listed_counts,
    shallowest,
    deepest,
    row_stride,
    V: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Grid ``(B, splits)`` of BLOCK tokens: appends those in the bracket to ``(B, V)`` lists, in any order.

    Also ``(B, splits)``: tokens above the bracket and their mass, tokens listed, the ends of their depths.
    Groups whose best token is below the bracket are not read.
    """
    row, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    state = search + row * FIELDS
    last = tl.load(state + LAST)
    if last >= 0:
        first, heat, best = tl.load(state + FIRST), tl.load(temperature + row), tl.load(shaped_best + row)
        place = row * tl.num_programs(1) + split
        total, lane = tl.zeros((), tl.int32), tl.arange(0, _PIECE)
        low, high = tl.full((_PIECE,), DEEPEST, tl.int32), tl.zeros((_PIECE,), tl.int32)
        sure_count, sure_mass = tl.zeros((_PIECE,), tl.int32), tl.zeros((_PIECE,), tl.int64)
        # In pieces: most are left out for a small top-k, and fewer registers let more programs run at once.
        for start in range(0, BLOCK, _PIECE):
            groups = start // GROUP + tl.arange(0, _PIECE // GROUP)
            tops = tl.load(group_best + place * (BLOCK // GROUP) + groups)
            near = depth_of(scaled(tops, best, heat)) <= last
            if tl.max(near.to(tl.int32), 0) > 0:
                ids = split * BLOCK + start + lane
                read = tl.reshape(tl.broadcast_to(near[:, None], (_PIECE // GROUP, GROUP)), (_PIECE,))
                # Triton 3.6 does not see that groups are read as wholes.
                read = tl.max_constancy(read, GROUP) & (ids < V)
                values = tl.load(logits + row * row_stride + ids, mask=read, other=float("-inf"))
                value = scaled(values, best, heat)
                depth = depth_of(value)
                if first > 0:
                    sure_count += (depth < first).to(tl.int32)
                    sure_mass += tl.where(depth < first, mass_of(value), 0)
                listed = (depth >= first) & (depth <= last)
                count = tl.sum(listed.to(tl.int32), 0)
                if count > 0:
                    total += count
                    low = tl.minimum(low, tl.where(listed, depth, DEEPEST))
                    high = tl.maximum(high, tl.where(listed, depth, 0))
                    begin = row * V + tl.atomic_add(state + SIZE, count, sem="relaxed")
                    places = tl.cumsum(listed.to(tl.int32), 0) - 1
                    tl.store(list_ids + begin + places, ids, mask=listed)
                    tl.store(list_values + begin + places, value, mask=listed)
        tl.store(kept_counts + place, tl.sum(sure_count, 0))
        tl.store(kept_mass + place, tl.sum(sure_mass, 0))
        tl.store(listed_counts + place, total)
        tl.store(shallowest + place, tl.min(low, 0))
        tl.store(deepest + place, tl.max(high, 0))
