"""What a drafter is: committed tokens in, proposals out. The verifier need not know which one it was."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

from spearhead.model.engine import Failure
from spearhead.model.sampling import SamplingParameters


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftItem:
    """One sequence to draft for; see ``ProposeItem`` in the contract.

    Attributes:
        key: The sequence.
        epoch: Restarts of the sequence so far.
        committed_length: Tokens that must be held.
        token_ids: Tokens committed since.
        max_draft_tokens: Drafts wanted; 0 = only catch up.
        max_compute_tokens: Bound on tokens computed now; ``None`` = all.
        sampling: The verifier's law; ``None`` only when nothing is drafted.
    """

    key: Hashable
    epoch: int
    committed_length: int
    token_ids: Sequence[int]
    max_draft_tokens: int
    max_compute_tokens: int | None
    sampling: SamplingParameters | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """The drafts for one item.

    Attributes:
        computed_length: Tokens held now, drafts included.
        cached_token_count: Of these, taken from the prefix cache.
        draft_token_ids: In order, perhaps none.
        confidences: Probability that the drafter gave each of them.
    """

    computed_length: int
    cached_token_count: int
    draft_token_ids: tuple[int, ...] = ()
    confidences: tuple[float, ...] = ()


class Drafter(Protocol):
    """Proposes tokens; keeps the state of its sequences. Used from the model thread."""

    @property
    def page_count(self) -> int:
        """KV pages in all."""

    @property
    def free_page_count(self) -> int:
        """KV pages that could be allocated now."""

    def propose(self, items: Sequence[DraftItem]) -> tuple[list[Proposal | Failure], int]:
        """One outcome an item, in order, and the nanoseconds spent on sampling."""

    def release(self, keys: Sequence[Hashable]) -> None:
        """Frees sequences; unknown ones are no error."""

    def live_keys(self) -> list[Hashable]:
        """Sequences that hold state."""
