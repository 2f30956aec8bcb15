# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,no-any-return"
# Triton's language has no types that a checker knows.
"""Collects the tokens of a bracket, and how many lie above it with what mass."""

import triton
import triton.language as tl

from kernels.sample.bracket import FIELDS, FIRST, LAST, SIZE
from kernels.sample.depth import DEEPEST, depth_of, mass_of, scaled


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
        groups, members = tl.arange(0, BLOCK // GROUP), tl.arange(0, GROUP)
        place = row * tl.num_programs(1) + split
        heat, best = tl.load(temperature + row), tl.load(shaped_best + row)
        tops = tl.load(group_best + place * (BLOCK // GROUP) + groups)
        near = depth_of(scaled(tops, best, heat)) <= last
        count, sure_count = tl.zeros((), tl.int32), tl.zeros((), tl.int32)
        sure_mass = tl.zeros((), tl.int64)
        low, high = tl.zeros((), tl.int32) + DEEPEST, tl.zeros((), tl.int32)
        if tl.max(near.to(tl.int32), 0) > 0:
            ids = split * BLOCK + groups[:, None] * GROUP + members[None, :]
            read = near[:, None] & (ids < V)
            values = tl.load(logits + row * row_stride + ids, mask=read, other=float("-inf"))
            value, ids = tl.reshape(scaled(values, best, heat), (BLOCK,)), tl.reshape(ids, (BLOCK,))
            depth, first = depth_of(value), tl.load(state + FIRST)
            if first > 0:
                sure = depth < first
                sure_count = tl.sum(sure.to(tl.int32), 0)
                sure_mass = tl.sum(tl.where(sure, mass_of(value), 0), 0)
            listed = (depth >= first) & (depth <= last)
            number = tl.cumsum(listed.to(tl.int32), 0)
            count = tl.max(number, 0)
            if count > 0:
                low = tl.min(tl.where(listed, depth, low), 0)
                high = tl.max(tl.where(listed, depth, 0), 0)
                begin = tl.atomic_add(state + SIZE, count, sem="relaxed")
                places = row * V + begin + number - 1
                tl.store(list_ids + places, ids, mask=listed)
                tl.store(list_values + places, value, mask=listed)
        tl.store(kept_counts + place, sure_count)
        tl.store(kept_mass + place, sure_mass)
        tl.store(listed_counts + place, count)
        tl.store(shallowest + place, low)
        tl.store(deepest + place, high)
