"""Prompt lookup: if the last tokens occurred before in the sequence, propose what followed them then."""

from collections.abc import Hashable, Sequence

from draft_service.drafter import DraftItem, Proposal
from spearhead.model.engine import Failure, FailureReason


def find_continuation(tokens: Sequence[int], *, longest: int, shortest: int, count: int) -> list[int]:
    """The tokens that followed the latest earlier occurrence of the longest matching suffix.

    Args:
        tokens: The sequence so far.
        longest: Longest suffix to look up.
        shortest: Shortest one.
        count: Most tokens to return.

    Returns:
        Possibly none.
    """
    for size in range(min(longest, len(tokens) - 1), shortest - 1, -1):
        suffix = list(tokens[-size:])
        for start in range(len(tokens) - size - 1, -1, -1):
            if tokens[start + size - 1] == suffix[-1] and list(tokens[start : start + size]) == suffix:
                return list(tokens[start + size : start + size + count])
    return []


class NgramDrafter:
    """Needs no weights and no KV; keeps the tokens of each sequence.

    Args:
        longest: Longest suffix to look up, tokens.
        shortest: Shortest one.
        context_length: Longest sequence that it keeps.
        vocab_size: Token ids that may occur.
    """

    def __init__(self, *, longest: int, shortest: int, context_length: int, vocab_size: int) -> None:
        self._longest = longest
        self._shortest = shortest
        self._context_length = context_length
        self._vocab_size = vocab_size
        self._sequences: dict[Hashable, tuple[int, list[int]]] = {}

    @property
    def page_count(self) -> int:
        """It has no KV: always 0."""
        return 0

    @property
    def free_page_count(self) -> int:
        """It has no KV: always 0."""
        return 0

    def live_keys(self) -> list[Hashable]:
        """Sequences that it keeps."""
        return list(self._sequences)

    def release(self, keys: Sequence[Hashable]) -> None:
        """Forgets sequences; unknown ones are no error."""
        for key in keys:
            self._sequences.pop(key, None)

    def propose(self, items: Sequence[DraftItem]) -> tuple[list[Proposal | Failure], int]:
        """Looks up each sequence; no time is spent on sampling."""
        return [self._propose(item) for item in items], 0

    def _propose(self, item: DraftItem) -> Proposal | Failure:
        epoch, tokens = self._sequences.get(item.key, (item.epoch, []))
        if item.epoch < epoch:
            return Failure(
                reason=FailureReason.STALE_EPOCH, message=f"epoch {item.epoch} is older than {epoch}"
            )
        held = tokens if item.epoch == epoch else []
        end = item.committed_length + len(item.token_ids)
        if item.committed_length > len(held):
            return Failure(
                reason=FailureReason.CACHE_MISS,
                message=f"committed length {item.committed_length} exceeds the {len(held)} tokens held; send "
                "the sequence again from 0",
            )
        if not item.token_ids or end > self._context_length or max(item.token_ids) >= self._vocab_size:
            return Failure(
                reason=FailureReason.INVALID,
                message=f"{len(item.token_ids)} token ids up to length {end}; at least one is needed, the "
                f"context is {self._context_length} and ids must be below {self._vocab_size}",
            )
        tokens = [*held[: item.committed_length], *item.token_ids]
        self._sequences[item.key] = (item.epoch, tokens)
        drafts = find_continuation(
            tokens, longest=self._longest, shortest=self._shortest, count=item.max_draft_tokens
        )
        # A look-up knows no probability; it proposes what it is sure of.
        return Proposal(
            computed_length=end,
            cached_token_count=0,
            draft_token_ids=tuple(drafts),
            confidences=(1.0,) * len(drafts),
        )
