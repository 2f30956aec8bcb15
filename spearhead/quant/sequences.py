"""Token sequences for offline work: batches of equal width, padded at the end, with a mask."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBatch:
    """B sequences, padded at their end to the longest.

    Attributes:
        token_ids: int64 ``(B, T)``; padding is any valid id.
        valid: bool ``(B, T)``; false on padding and on other tokens that do not count.
    """

    token_ids: Tensor
    valid: Tensor

    def to(self, device: torch.device) -> "TokenBatch":
        """The same batch on another device."""
        return TokenBatch(token_ids=self.token_ids.to(device), valid=self.valid.to(device))

    def without_first(self, count: int) -> "TokenBatch":
        """The same batch whose first ``count`` tokens of each sequence do not count (attention sinks)."""
        valid = self.valid.clone()
        valid[:, :count] = False
        return TokenBatch(token_ids=self.token_ids, valid=valid)


def batches(sequences: Sequence[Sequence[int]], batch_size: int) -> Iterator[TokenBatch]:
    """Groups sequences in the order given; the last batch may be smaller."""
    for start in range(0, len(sequences), batch_size):
        yield batch_of(sequences[start : start + batch_size])


def batch_of(sequences: Sequence[Sequence[int]]) -> TokenBatch:
    """One batch of at least one sequence."""
    width = max(map(len, sequences))
    token_ids = torch.zeros(len(sequences), width, dtype=torch.int64)
    valid = torch.zeros(len(sequences), width, dtype=torch.bool)
    for row, sequence in enumerate(sequences):
        token_ids[row, : len(sequence)] = torch.as_tensor(sequence)
        valid[row, : len(sequence)] = True
    return TokenBatch(token_ids=token_ids, valid=valid)
