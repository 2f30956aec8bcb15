"""Memory in which launches that compute codes hand them over: zeros for a whole pass by one launch."""

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.compensator.layout import GpuCompensator

GROUP_ROWS = 16
"""Rows of a tensor core, whose codes are one program's for each slice of the columns."""
COUNTER_WORDS = 4
"""Words in front of the codes for each such group: 16 bytes, so that parts of one room are aligned."""


def room_words(compensator: GpuCompensator, rows: int) -> int:
    """int32 zeros that a launch of so many rows uses up: arrival counters of all groups, then the codes."""
    return -(-rows // GROUP_ROWS) * (COUNTER_WORDS + GROUP_ROWS * compensator.code_width)


class Rooms:
    """Gives zeros to products of one stream, piece by piece.

    Args:
        device: Where the products are.
    """

    def __init__(self, device: torch.device) -> None:
        self._zeros = torch.zeros(0, dtype=torch.int32, device=device)
        self._used = 0

    def start(self, words: int) -> None:
        """New zeros, for as many products as :func:`room_words` of all of them together."""
        self._zeros = torch.zeros(words, dtype=torch.int32, device=self._zeros.device)
        self._used = 0

    def take(self, words: int) -> Tensor | None:
        """The next ``words`` zeros; ``None`` = too few are left, so that the product has to make its own."""
        first, end = self._used, self._used + words
        if end > len(self._zeros):
            return None
        self._used = end
        return self._zeros[first:end]

    def of_copy(self, copy: int, compensators: Sequence[GpuCompensator], rows: int) -> Tensor | None:
        """For measurements: zeros of one of several copies of a product, made for all of them at copy 0, as a
        decoder makes them for all layers of a pass."""
        words = room_words(compensators[copy], rows)
        if copy == 0:
            self.start(words * len(compensators))
        return self.take(words)
