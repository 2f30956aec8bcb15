# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,no-any-return"
# Triton's language has no types that a checker knows.
"""The best tokens of the raw logits and the rank of the sampled one, for log-probabilities."""

import triton
import triton.language as tl


@triton.jit
def _take_best(values, ids, LAST: tl.constexpr):
    """The best value, its lowest id, and the values without it."""
    best = tl.max(values, 0)
    best_id = tl.min(tl.where(values == best, ids, LAST), 0)
    return best, best_id, tl.where(ids == best_id, float("-inf"), values)


@triton.jit
def best_of_split(
    logits,
    token_ids,
    values_out,
    ids_out,
    ranks,
    row_stride,
    V: tl.constexpr,
    BLOCK: tl.constexpr,
    COUNT: tl.constexpr,
):
    """Grid ``(B, splits)``: COUNT best of each split, ``(B, splits, COUNT)``; adds to ``ranks (B,)``."""
    row, split = tl.program_id(0), tl.program_id(1)
    ids = split * BLOCK + tl.arange(0, BLOCK)
    source = logits + row.to(tl.int64) * row_stride
    values = tl.load(source + ids, mask=ids < V, other=float("-inf"))
    above = values > tl.load(source + tl.load(token_ids + row))
    tl.atomic_add(ranks + row, tl.sum(above.to(tl.int32), 0), sem="relaxed")
    place = (row * tl.num_programs(1) + split) * COUNT
    for index in range(COUNT):
        best, best_id, values = _take_best(values, ids, V)
        tl.store(values_out + place + index, best)
        tl.store(ids_out + place + index, best_id)


@triton.jit
def best_of_row(
    values_in,
    ids_in,
    normalizer,
    top_ids,
    top_logprobs,
    candidates,
    V: tl.constexpr,
    BLOCK: tl.constexpr,
    COUNT: tl.constexpr,
):
    """Grid ``(B,)``: merges the splits' best into ``(B, COUNT)``, best first."""
    row = tl.program_id(0)
    places = tl.arange(0, BLOCK)
    mask = places < candidates
    values = tl.load(values_in + row * candidates + places, mask=mask, other=float("-inf"))
    ids = tl.load(ids_in + row * candidates + places, mask=mask, other=V)
    total = tl.load(normalizer + row)
    for index in range(COUNT):
        best, best_id, values = _take_best(values, ids, V)
        # Taken tokens and minus infinity look the same; only their ids tell them apart.
        ids = tl.where(ids == best_id, V, ids)
        tl.store(top_ids + row * COUNT + index, best_id)
        tl.store(top_logprobs + row * COUNT + index, (best.to(tl.float64) - total).to(tl.float32))
