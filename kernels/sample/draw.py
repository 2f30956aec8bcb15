# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,no-any-return"
# Triton's language has no types that a checker knows.
"""The draw: the largest of scaled logit plus shared noise among the tokens of the cut.

Most tokens cannot win: the row's *leader*, the best score of a few tokens that are kept for sure, is out of
their reach even with the largest noise, or with the random bits that they have. Logarithms are taken only
where one may win, and change no result.
"""

import triton
import triton.language as tl

from kernels.sample.bracket import DRAWN, FIELDS
from kernels.sample.depth import depth_of, mass_of, scaled
from kernels.sample.noise import bits_of_block, chance_left, variate
from kernels.sample.scan import BLOCK_EDITS

_PIECE = tl.constexpr(1024)
_REACH = tl.constexpr(16.65)  # above the largest noise
_SLACK = tl.constexpr(0.01)  # above what rounding does to scores


@triton.jit
def draw(
    logits,
    shaped_best,
    temperature,
    seeds,
    positions,
    search,
    cut_depth,
    cut_id,
    leader,
    scores,
    score_ids,
    kept_mass,
    row_stride,
    V: tl.constexpr,
    BLOCK: tl.constexpr,
    FILTERED: tl.constexpr,
):
    """Grid ``(B, splits)`` of BLOCK tokens: the best of each split and its mass, ``(B, splits)``.

    Not FILTERED leaves out the cut. The first split of a row that the search has drawn from stays as it is.
    """
    row, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    place = row * tl.num_programs(1) + split
    drawn = tl.zeros((), tl.int32)
    if FILTERED:
        drawn = tl.load(search + row * FIELDS + DRAWN)
    if drawn == 0:
        heat, best = tl.load(temperature + row), tl.load(shaped_best + row)
        if FILTERED:
            limit, highest = tl.load(cut_depth + row), tl.load(cut_id + row)
        seed, position = tl.load(seeds + row), tl.load(positions + row)
        to_beat = tl.load(leader + row)
        score, score_id = tl.full((), float("-inf"), tl.float32), tl.zeros((), tl.int32) + V
        mass = tl.zeros((_PIECE,), tl.int64)
        for start in range(split * BLOCK, tl.minimum(split * BLOCK + BLOCK, V), _PIECE):
            ids = start + tl.arange(0, _PIECE)
            values = tl.load(logits + row * row_stride + ids, mask=ids < V, other=float("-inf"))
            value = scaled(values, best, heat)
            kept = value > float("-inf")
            if FILTERED:
                depth = depth_of(value)
                kept = kept & ((depth < limit) | ((depth == limit) & (ids <= highest)))
            value = tl.where(kept, value, float("-inf"))
            mass += mass_of(value)
            if (heat > 0) & (tl.max(value, 0) >= to_beat - _REACH):
                bits = bits_of_block(seed, position, start, _PIECE)
                able = chance_left(bits) <= tl.exp(value) * tl.exp(-to_beat + _SLACK)
                if tl.max(able.to(tl.int32), 0) > 0:
                    noisy = value + variate(bits)
                    top = tl.max(noisy, 0)
                    top_id = tl.min(tl.where(noisy == top, ids, V), 0)
                    # Ids rise with the pieces, so that the first of equal scores stays.
                    score_id = tl.where(top > score, top_id, score_id)
                    score = tl.maximum(score, top)
                    to_beat = tl.maximum(to_beat, score)
        tl.store(scores + place, score)
        tl.store(score_ids + place, score_id)
        tl.store(kept_mass + place, tl.sum(mass, 0))
    elif split > 0:
        tl.store(scores + place, float("-inf"))
        tl.store(score_ids + place, V)
        tl.store(kept_mass + place, 0)


@triton.jit
def finish(
    logits,
    row_starts,
    edited_ids,
    saved,
    scores,
    score_ids,
    kept_mass,
    temperature,
    finite,
    raw_best_id,
    shaped_best,
    shaped_best_id,
    normalizer,
    token_ids,
    probability,
    logprob,
    splits,
    row_stride,
    V: tl.constexpr,
    BLOCK_SPLITS: tl.constexpr,
    HAS_EDITS: tl.constexpr,
):
    """Grid ``(B,)``: the token of each row; puts raw values back in the place of edited ones."""
    row = tl.program_id(0)
    parts = tl.arange(0, BLOCK_SPLITS)
    mask = parts < splits
    values = tl.load(scores + row * splits + parts, mask=mask, other=float("-inf"))
    ids = tl.load(score_ids + row * splits + parts, mask=mask, other=V)
    drawn = tl.min(tl.where(values == tl.max(values, 0), ids, V), 0)
    heat = tl.load(temperature + row)
    token = tl.where(heat == 0, tl.load(shaped_best_id + row), drawn)
    token = tl.where(tl.load(finite + row), token, tl.load(raw_best_id + row))
    # Rows without a finite number have no token; any id will do, as long as it is one.
    token = tl.minimum(token, V - 1)
    source = logits + row.to(tl.int64) * row_stride
    weight = mass_of(scaled(tl.load(source + token), tl.load(shaped_best + row), heat))
    total = tl.sum(tl.load(kept_mass + row * splits + parts, mask=mask, other=0), 0)
    tl.store(token_ids + row, token.to(tl.int64))
    share = weight.to(tl.float64) / tl.maximum(total, 1).to(tl.float64)
    tl.store(probability + row, share.to(tl.float32))
    if HAS_EDITS:
        # Other warps may not have read the edited value yet.
        tl.debug_barrier()
        end = tl.load(row_starts + row + 1)
        for start in range(tl.load(row_starts + row), end, BLOCK_EDITS):
            edits = start + tl.arange(0, BLOCK_EDITS)
            used = edits < end
            place = source + tl.load(edited_ids + edits, mask=used, other=0)
            tl.store(place, tl.load(saved + edits, mask=used, other=0.0), mask=used)
        tl.debug_barrier()
    raw = tl.load(source + token).to(tl.float64)
    tl.store(logprob + row, (raw - tl.load(normalizer + row)).to(tl.float32))
