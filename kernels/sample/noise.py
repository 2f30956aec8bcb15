# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,no-any-return"
# Triton's language has no types that a checker knows.
"""The shared noise: a Gumbel variate of (seed, position, token id).

Philox4x32-10 with the seed as key and the counter (token id // 4, 0, position low, position high), lane
token id % 4. Four tokens in a row cost one evaluation.
"""

import triton
import triton.language as tl


@triton.jit
def gumbel(seed, position, first_id, BLOCK: tl.constexpr):
    """Noise of BLOCK token ids from ``first_id`` on, a multiple of 4; float32 in [-2.82, 16.64]."""
    return variate(bits_of_block(seed, position, first_id, BLOCK))


@triton.jit
def gumbel_of(seed, position, token_ids):
    """The same noise of any token ids, at four times the price."""
    lane_0, lane_1, lane_2, lane_3 = _lanes(seed, position, token_ids // 4)
    lane = token_ids % 4
    low, high = tl.where(lane == 0, lane_0, lane_1), tl.where(lane == 2, lane_2, lane_3)
    return variate(tl.where(lane < 2, low, high) >> 9)


@triton.jit
def bits_of_block(seed, position, first_id, BLOCK: tl.constexpr):
    """The 23 random bits of BLOCK token ids from ``first_id`` on, a multiple of 4."""
    lane_0, lane_1, lane_2, lane_3 = _lanes(seed, position, first_id // 4 + tl.arange(0, BLOCK // 4))
    return tl.join(tl.join(lane_0, lane_2), tl.join(lane_1, lane_3)).reshape(BLOCK) >> 9


@triton.jit
def variate(bits):
    """Noise of random bits."""
    return -tl.log(-tl.log((bits.to(tl.float32) + 0.5) * (2.0**-23)))


@triton.jit
def chance_left(bits):
    """One minus the uniform number; noise above x makes it smaller than ``exp(-x)``."""
    return (8388608.0 - bits.to(tl.float32) - 0.5) * (2.0**-23)


@triton.jit
def _lanes(seed, position, fours):
    fours = fours.to(tl.uint32)
    zero = tl.zeros_like(fours)
    low = zero + (position & 0xFFFFFFFF).to(tl.uint32)
    high = zero + ((position >> 32) & 0xFFFFFFFF).to(tl.uint32)
    return tl.philox(seed, fours, zero, low, high)
