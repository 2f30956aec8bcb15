"""Codes out of the int32 words that checkpoints pack them into."""

import torch
from torch import Tensor

IN_ORDER = tuple(range(8))
"""Place i of a word holds element i: compressed-tensors, GPTQ."""

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Place i of a 4-bit word holds element ``AWQ_ORDER[i]``."""


def word_count(count: int, bits: int) -> int:
    """Words that a row of codes fills; the last may be partly empty."""
    return -(-count * bits // 32)


def unpack_words(words: Tensor, *, bits: int, count: int, order: tuple[int, ...] = IN_ORDER) -> Tensor:
    """Takes words apart; place i of a word is at its bits ``bits * i`` and up.

    Args:
        words: int32 ``(R, W)``, any strides: a transposed view unpacks what was packed along the other axis.
        bits: 4 or 8.
        count: Codes to take from each row.
        order: For each place of a word, which of its codes that is.

    Returns:
        uint8 ``(R, count)``, contiguous.
    """
    places, mask = 32 // bits, (1 << bits) - 1
    codes = torch.empty(words.shape[0], words.shape[1] * places, dtype=torch.uint8)
    for place in range(places):
        # The shift keeps the sign, the mask drops it.
        codes[:, order[place] :: places] = (words >> (bits * place)) & mask
    return codes[:, :count].contiguous()


def signed(codes: Tensor, bits: int) -> Tensor:
    """Unsigned codes with the middle of their range subtracted.

    Args:
        codes: uint8, each below ``2 ** bits``.
        bits: 4 or 8.

    Returns:
        int8, of the same shape.
    """
    # Flipping the top bit and reading as signed is the subtraction for 8 bits.
    return (codes ^ 0x80).view(torch.int8) if bits == 8 else codes.view(torch.int8) - 8
