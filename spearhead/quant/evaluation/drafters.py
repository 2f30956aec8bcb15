"""Drafters, and rounds of speculation replayed along what the verifier says anyway.

With shared noise the verifier's output does not depend on the drafts. A round that starts at position t thus
accepts exactly the leading drafts that equal the verifier's own tokens from t on, and what a draft model
would have drafted up to its first miss follows from one pass over that output. So acceptance is exact, not
estimated, without running round by round.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from spearhead.quant.evaluation.model_variant import EvaluatedModel
from spearhead.quant.evaluation.sampling_law import SamplingLaw, picks_along

Propose = Callable[[int, int], Sequence[int]]
"""Drafts for the positions from the first argument on, at most as many as the second says."""

Lookup = Callable[[Sequence[int], int], Sequence[int]]
"""Drafts that follow a sequence, at most so many; needs no model."""


class Drafter(Protocol):
    """Drafts along given sequences."""

    @property
    def name(self) -> str:
        """For people."""

    def proposals(self, sequences: Tensor, start: int, law: SamplingLaw) -> list[Propose]:
        """For each sequence ``(P, T)``, what is drafted at a position from ``start`` on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDrafter:
    """Picks its own sample at each position, with the verifier's noise.

    Attributes:
        name: For people.
        model: The draft model.
        tokens_at_once: Tokens that pass through a layer together.
    """

    name: str
    model: EvaluatedModel
    tokens_at_once: int = 2048

    def proposals(self, sequences: Tensor, start: int, law: SamplingLaw) -> list[Propose]:
        """Drafts given the verifier's tokens: right up to the first miss, and nothing later is judged."""
        picks = picks_along(self.model, sequences, start, law, tokens_at_once=self.tokens_at_once).tolist()
        return [_slicing(row, start) for row in picks]


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupDrafter:
    """Drafts what a function of the sequence so far says.

    Attributes:
        name: For people.
        lookup: Finds the drafts.
    """

    name: str
    lookup: Lookup

    def proposals(self, sequences: Tensor, start: int, law: SamplingLaw) -> list[Propose]:
        """Drafts from the tokens alone; the noise plays no part."""
        return [self._looking(row) for row in sequences.tolist()]

    def _looking(self, tokens: list[int]) -> Propose:
        return lambda position, count: self.lookup(tokens[:position], count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """Rounds over one sequence.

    Attributes:
        tokens: Emitted: accepted drafts, and one token of the verifier's own a round.
        rounds: Verification steps.
        drafted: Drafts that were sent.
        accepted: Drafts that were right.
    """

    tokens: int
    rounds: int
    drafted: int
    accepted: int


def replay(output: Sequence[int], start: int, propose: Propose, draft_tokens: int) -> Replay:
    """Plays the rounds over the verifier's output.

    Args:
        output: The verifier's sequence, prompt included.
        start: Length of the prompt.
        propose: The drafter.
        draft_tokens: Most drafts a round; fewer where no more tokens are wanted.
    """
    position, rounds, drafted, accepted = start, 0, 0, 0
    while position < len(output):
        room = min(draft_tokens, len(output) - position - 1)
        drafts = propose(position, room) if room else ()
        right = matching(drafts, output[position : position + room])
        position += right + 1
        rounds, drafted, accepted = rounds + 1, drafted + len(drafts), accepted + right
    return Replay(tokens=len(output) - start, rounds=rounds, drafted=drafted, accepted=accepted)


def matching(first: Sequence[int], second: Sequence[int]) -> int:
    """Leading tokens that two sequences have in common."""
    for index, (one, other) in enumerate(zip(first, second, strict=False)):
        if one != other:
            return index
    return min(len(first), len(second))


def _slicing(picks: Sequence[int], start: int) -> Propose:
    return lambda position, count: picks[position - start : position - start + count]
