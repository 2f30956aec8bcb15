"""What a rank needs of the others, and the sum that is the same on all of them."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor


class Ranks(Protocol):
    """All ranks, as one of them sees them. Every method is called by all ranks in the same order.

    Attributes:
        rank: This one, from 0.
        size: How many there are.
    """

    rank: int
    size: int

    def meet(self) -> None:
        """Waits for all ranks, as long as they live: for work that may take one much longer than another.

        Raises:
            RankFailure: The leader is gone.
        """

    def gather(self, tensor: Tensor) -> Sequence[Tensor]:
        """The tensors of all ranks, in the order of ranks; of one shape and type everywhere.

        Raises:
            RankFailure: A rank is lost or stuck.
        """

    def agree(self, proposal: bool) -> bool:
        """Whether every rank proposes it.

        Raises:
            RankFailure: A rank is lost or stuck.
        """


class SingleRank:
    """The one rank of a model that is not cut: nothing is exchanged."""

    rank = 0
    size = 1

    def meet(self) -> None:
        """Nobody is waited for."""

    def gather(self, tensor: Tensor) -> Sequence[Tensor]:
        """The tensor itself."""
        return (tensor,)

    def agree(self, proposal: bool) -> bool:
        """The proposal itself."""
        return proposal


ALONE = SingleRank()


def ordered_sum(parts: Sequence[Tensor]) -> Tensor:
    """``parts[0] + parts[1] + …`` from left to right, float32: the same bits wherever it is computed."""
    total = parts[0].to(torch.float32, copy=True)
    for part in parts[1:]:
        total += part
    return total
