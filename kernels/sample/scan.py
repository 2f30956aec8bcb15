# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,no-any-return"
# Triton's language has no types that a checker knows.
"""First passes over the logits: the two best, the normaliser, and the edits of single logits.

Edited logits are lifted out (minus infinity takes their place), the rest is scanned once, and the raw and the
edited values are then merged into what the scan found. So edits cost no pass over the vocabulary.
"""

import triton
import triton.language as tl

from kernels.sample.bracket import FIELDS, LAST, start_search, wants_cut
from kernels.sample.depth import DEEPEST, depth_of
from kernels.sample.leader import lead

BLOCK_EDITS = tl.constexpr(256)


@triton.jit
def lift(logits, row_starts, edited_ids, saved, row_stride):
    """Grid ``(B,)``: moves the raw value of each edited token to ``saved``."""
    row = tl.program_id(0)
    end = tl.load(row_starts + row + 1)
    for start in range(tl.load(row_starts + row), end, BLOCK_EDITS):
        edits = start + tl.arange(0, BLOCK_EDITS)
        mask = edits < end
        place = logits + row.to(tl.int64) * row_stride + tl.load(edited_ids + edits, mask=mask, other=0)
        tl.store(saved + edits, tl.load(place, mask=mask, other=0.0), mask=mask)
        tl.store(place, float("-inf"), mask=mask)


@triton.jit
def best_two(values, ids, LAST: tl.constexpr):
    """Largest value, the lowest id that has it, and the largest value of all other ids."""
    best = tl.max(values, 0)
    best_id = tl.min(tl.where(values == best, ids, LAST), 0)
    return best, best_id, tl.max(tl.where(ids == best_id, float("-inf"), values), 0)


@triton.jit
def better(best, best_id, second, other, other_id, other_second):
    """The best two of two disjoint sets."""
    wins = (other > best) | ((other == best) & (other_id < best_id))
    second = tl.maximum(tl.minimum(best, other), tl.maximum(second, other_second))
    return tl.where(wins, other, best), tl.where(wins, other_id, best_id), second


@triton.jit
def scan(
    logits,
    best,
    best_id,
    second,
    total,
    group_best,
    row_stride,
    V: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Grid ``(B, splits)`` of BLOCK tokens: ``(B, splits)`` outputs, and the best of every GROUP tokens.

    The total of a split that holds NaN or positive infinity is NaN.
    """
    row, split = tl.program_id(0), tl.program_id(1)
    ids = split * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(logits + row.to(tl.int64) * row_stride + ids, mask=ids < V, other=float("-inf"))
    bad = (values < float("inf")) == 0  # NaN too
    values = tl.where(bad, float("-inf"), values)
    top, top_id, next_best = best_two(values, ids, V)
    base = tl.where(top == float("-inf"), 0.0, top)
    place = row * tl.num_programs(1) + split
    tl.store(best + place, top)
    tl.store(best_id + place, top_id)
    tl.store(second + place, next_best)
    tl.store(total + place, tl.sum(tl.where(bad, float("nan"), tl.exp(values - base)), 0))
    groups = place * (BLOCK // GROUP) + tl.arange(0, BLOCK // GROUP)
    tl.store(group_best + groups, tl.max(tl.reshape(values, (BLOCK // GROUP, GROUP)), 1))


@triton.jit
def merge(
    logits,
    best,
    best_id,
    second,
    total,
    group_best,
    row_starts,
    edited_ids,
    bias,
    counts,
    flags,
    repetition,
    presence,
    frequency,
    saved,
    temperature,
    top_k,
    top_p,
    log_min_p,
    seeds,
    positions,
    search,
    leader,
    raw_best_id,
    margin,
    normalizer,
    finite,
    shaped_best,
    shaped_best_id,
    splits,
    row_stride,
    V: tl.constexpr,
    BLOCK_SPLITS: tl.constexpr,
    HAS_EDITS: tl.constexpr,
    FILTERED: tl.constexpr,
    GROUP: tl.constexpr,
    SPLIT_GROUPS: tl.constexpr,
    BLOCK_GROUPS: tl.constexpr,
):
    """Grid ``(B,)``: merges the splits and the edits, and writes edited values to the logits.

    FILTERED starts the search for the cut, ``search`` int32 ``(B, 8)``, else the leader is found.
    ``group_best`` has SPLIT_GROUPS a split.
    """
    row = tl.program_id(0).to(tl.int64)
    row_groups = group_best + row * splits * SPLIT_GROUPS
    parts = tl.arange(0, BLOCK_SPLITS)
    mask = parts < splits
    tops = tl.load(best + row * splits + parts, mask=mask, other=float("-inf"))
    top_ids = tl.load(best_id + row * splits + parts, mask=mask, other=V)
    sums = tl.load(total + row * splits + parts, mask=mask, other=0.0)
    bad = tl.max((sums != sums).to(tl.int32), 0)
    sums = tl.where(sums != sums, 0.0, sums)
    # Ids rise with the split, so the lowest id of the best value wins.
    top, top_id, next_best = best_two(tops, top_ids, V)
    seconds = tl.load(second + row * splits + parts, mask=mask, other=float("-inf"))
    next_best = tl.maximum(next_best, tl.max(seconds, 0))
    shaped_top, shaped_id = top, top_id
    if HAS_EDITS:
        begin, end = tl.load(row_starts + row), tl.load(row_starts + row + 1)
        penalty = tl.load(repetition + row)
        for start in range(begin, end, BLOCK_EDITS):
            edits = start + tl.arange(0, BLOCK_EDITS)
            used = edits < end
            ids = tl.load(edited_ids + edits, mask=used, other=V)
            raw = tl.load(saved + edits, mask=used, other=float("-inf"))
            flag = tl.load(flags + edits, mask=used, other=0)
            count = tl.load(counts + edits, mask=used, other=0.0)
            value = raw + tl.load(bias + edits, mask=used, other=0.0)
            value = tl.where((flag & 2) != 0, float("-inf"), value)
            punished = tl.where(value > 0, tl.div_rn(value, penalty + tl.zeros_like(value)), value * penalty)
            punished -= tl.where(count > 0, tl.load(presence + row), 0.0)
            punished -= tl.load(frequency + row) * count
            value = tl.where((flag & 1) != 0, punished, value)
            tl.store(logits + row * row_stride + ids, value, mask=used)
            if FILTERED:
                tl.atomic_max(row_groups + ids // GROUP, value, mask=used, sem="relaxed")
            wrong = (raw != raw) | (raw == float("inf"))
            bad = tl.maximum(bad, tl.max(wrong.to(tl.int32), 0))
            raw_top, raw_id, raw_next = best_two(tl.where(wrong, float("-inf"), raw), ids, V)
            top, top_id, next_best = better(top, top_id, next_best, raw_top, raw_id, raw_next)
            edited_top, edited_id, edited_next = best_two(value, ids, V)
            shaped_top, shaped_id, edited_next = better(
                shaped_top, shaped_id, edited_next, edited_top, edited_id, edited_next
            )
    base = tl.where(top == float("-inf"), 0.0, top)
    mass = tl.sum(sums.to(tl.float64) * tl.exp(tops - base).to(tl.float64), 0)
    if HAS_EDITS:
        for start in range(begin, end, BLOCK_EDITS):
            edits = start + tl.arange(0, BLOCK_EDITS)
            raw = tl.load(saved + edits, mask=edits < end, other=float("-inf"))
            mass += tl.sum(tl.exp(raw - base).to(tl.float64), 0)
    tl.store(raw_best_id + row, top_id)
    tl.store(margin + row, top - next_best)
    tl.store(normalizer + row, base.to(tl.float64) + tl.log(mass))
    whole = (bad == 0) & (top > float("-inf"))
    tl.store(finite + row, whole)
    tl.store(shaped_best + row, shaped_top)
    tl.store(shaped_best_id + row, shaped_id)
    if FILTERED:
        if HAS_EDITS:
            tl.debug_barrier()
        if whole & wants_cut(row, temperature, top_k, top_p):
            floor = depth_of(tl.load(log_min_p + row))
            start_search(
                search + row * FIELDS,
                row_groups,
                shaped_top,
                tl.load(temperature + row),
                tl.load(top_k + row),
                floor,
                V,
                GROUP,
                BLOCK_GROUPS,
            )
        else:
            tl.store(search + row * FIELDS + LAST, -1)
    elif tl.load(temperature + row) > 0:
        lead(
            best,
            best_id,
            leader,
            shaped_top,
            tl.load(temperature + row),
            seeds,
            positions,
            DEEPEST,
            V,
            row,
            splits,
            V,
            BLOCK_SPLITS,
        )
