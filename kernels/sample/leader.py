# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,no-any-return"
# Triton's language has no types that a checker knows.
"""The leader of a row: a score that the token to be drawn has at least."""

import triton
import triton.language as tl

from kernels.sample.depth import depth_of, scaled
from kernels.sample.noise import gumbel_of

_LEAST = tl.constexpr(-2.83)  # below the score of the best token with the smallest noise


@triton.jit
def lead(
    best,
    best_id,
    leader,
    shaped_top,
    heat,
    seeds,
    positions,
    depth,
    highest,
    row,
    splits,
    V: tl.constexpr,
    BLOCK_SPLITS: tl.constexpr,
):
    """Stores the best score of those among the best of splits that a cut keeps."""
    parts = tl.arange(0, BLOCK_SPLITS)
    places, live = row * splits + parts, parts < splits
    token = tl.load(best_id + places, mask=live, other=V)
    value = scaled(tl.load(best + places, mask=live, other=float("-inf")), shaped_top, heat)
    own = depth_of(value)
    kept = live & ((own < depth) | ((own == depth) & (token <= highest)))
    score = value + gumbel_of(tl.load(seeds + row), tl.load(positions + row), token)
    tl.store(leader + row, tl.maximum(tl.max(tl.where(kept, score, _LEAST), 0), _LEAST))
