"""Shared noise: Gumbel variates that depend only on (request seed, position, token id).

The token at position t is ``argmax(log p_t + g_t)``, an exact sample of p_t (Gumbel-max). Drafter and
verifier take the same g_t, so a draft is accepted iff both arg maxima agree, and the output for a seed
does not depend on drafter, draft length, batch or retries.

The generator is Philox4x32-10 (Salmon et al., SC 2011), counter-based and thus random access: the key is
the seed, the counter is (token_id // 4, 0, position low, position high), the lane token_id % 4. GPUs
compute the same integers.
"""

import numpy as np
import numpy.typing as npt

_MULTIPLIER_0 = np.uint64(0xD2511F53)
_MULTIPLIER_1 = np.uint64(0xCD9E8D57)
_WEYL_0 = 0x9E3779B9
_WEYL_1 = 0xBB67AE85
_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)
_ROUNDS = 10
_MANTISSA_BITS = 23

MAX_NOISE = np.float32(16.7)
"""No variate exceeds it: -log(-log(1 - 2**-24)) = 16.636."""

Counters = npt.NDArray[np.uint64]


def philox4x32(
    key: tuple[int, int], counter: tuple[Counters, Counters, Counters, Counters]
) -> list[Counters]:
    """Ten rounds of Philox4x32.

    Args:
        key: Two 32-bit words.
        counter: Four equally shaped uint64 arrays that hold 32-bit words.

    Returns:
        Four uint64 arrays of that shape, each value below 2**32.
    """
    key_0, key_1 = key
    x0, x1, x2, x3 = counter
    for _ in range(_ROUNDS):
        product_0, product_1 = x0 * _MULTIPLIER_0, x2 * _MULTIPLIER_1
        x0, x1, x2, x3 = (
            (product_1 >> _SHIFT) ^ x1 ^ np.uint64(key_0),
            product_1 & _LOW,
            (product_0 >> _SHIFT) ^ x3 ^ np.uint64(key_1),
            product_0 & _LOW,
        )
        key_0, key_1 = (key_0 + _WEYL_0) & 0xFFFFFFFF, (key_1 + _WEYL_1) & 0xFFFFFFFF
    return [x0, x1, x2, x3]


def random_bits(seed: int, position: int, token_ids: npt.NDArray[np.int64]) -> Counters:
    """The 32 random bits of each token id, (len(token_ids),) uint64."""
    blocks, inverse = token_ids >> 2, token_ids & 3
    if len(blocks) and np.array_equal(token_ids, np.arange(len(token_ids))):
        lanes = _block_bits(seed, position, np.arange((len(token_ids) + 3) // 4, dtype=np.uint64))
        return np.ascontiguousarray(np.stack(lanes, axis=1).reshape(-1)[: len(token_ids)])
    lanes = _block_bits(seed, position, blocks.astype(np.uint64))
    return np.choose(inverse, lanes)


def gumbel_noise(seed: int, position: int, token_ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    """Gumbel(0, 1) variates, one a token id.

    Args:
        seed: Request seed, 0 .. 2**64 - 1.
        position: Index in the sequence of the token that is drawn.
        token_ids: (n,) int64.

    Returns:
        (n,) float32 in [-2.82, 16.7]: the uniform has 23 bits, at the centres of their cells, so that both
        logarithms are finite in float32.
    """
    bits = random_bits(seed, position, token_ids)
    cells = (bits >> np.uint64(32 - _MANTISSA_BITS)).astype(np.float32)
    uniform = (cells + np.float32(0.5)) * np.float32(2.0**-_MANTISSA_BITS)
    noise: npt.NDArray[np.float32] = -np.log(-np.log(uniform))
    return noise


def _block_bits(seed: int, position: int, blocks: Counters) -> list[Counters]:
    shape = blocks.shape
    zero = np.zeros(shape, np.uint64)
    low = np.full(shape, position & 0xFFFFFFFF, np.uint64)
    high = np.full(shape, position >> 32, np.uint64)
    return philox4x32((seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF), (blocks, zero, low, high))
