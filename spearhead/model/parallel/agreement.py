"""Whether ranks were given the same, and what they hold together."""

import hashlib

import torch

from spearhead.errors import ConfigError
from spearhead.model.parallel.ranks import Ranks


def check_same(ranks: Ranks, words: str, device: torch.device) -> None:
    """Sees to it that all ranks compute with the same files and settings.

    Args:
        ranks: All of them call this.
        words: Whatever has to be the same.
        device: Of the exchange.

    Raises:
        ConfigError: A rank has others; on every rank.
    """
    digest = list(hashlib.sha256(words.encode()).digest())
    answers = [part.tolist() for part in ranks.gather(torch.tensor(digest, dtype=torch.uint8, device=device))]
    others = [rank for rank, answer in enumerate(answers) if answer != answers[0]]
    if others:
        raise ConfigError(
            f"ranks {others} of {ranks.size} have another checkpoint, configuration or version than rank 0; "
            f"give all ranks the same. This is rank {ranks.rank}: {words}"
        )


def total(ranks: Ranks, number: int, device: torch.device) -> int:
    """The sum of a number over all ranks; all of them call this.

    Args:
        ranks: All of them.
        number: Of this rank.
        device: Of the exchange.
    """
    mine = torch.tensor([number], dtype=torch.int64, device=device)
    return sum(int(part.item()) for part in ranks.gather(mine))
