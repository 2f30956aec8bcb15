"""Memory in which launches that compute codes hand them over: zeros for a whole pass by one launch."""

import torch
from torch import Tensor

from kernels.compensator.layout import GpuCompensator


def room_words(compensator: GpuCompensator, rows: int) -> int:
    """int32 zeros that a launch of so many rows uses up: for each 16 rows a counter, filled up to 16 bytes so
    that parts of one piece of memory are aligned, and the codes."""
    return -(-rows // 16) * (4 + 16 * compensator.code_width)


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
