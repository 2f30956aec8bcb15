"""Drafting with a model: one forward pass a draft token, all sequences together.

The drafter samples from its own distribution with the verifier's noise, so that both pick the same token
wherever their distributions agree.
"""

import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from draft_service.drafter import DraftItem, Proposal
from spearhead.model.checkpoint import FP16
from spearhead.model.engine import Advance, Advanced, Failure, FailureReason, SequenceEngine
from spearhead.model.sampling import History, sample


@dataclass(slots=True)
class _Draft:
    """A sequence that is being drafted for."""

    item: DraftItem
    outcome: Advanced
    history: History | None
    failure: Failure | None = None
    token_ids: list[int] = field(default_factory=list)
    confidences: list[float] = field(default_factory=list)

    @property
    def wants_more(self) -> bool:
        return len(self.token_ids) < self.item.max_draft_tokens


class ModelDrafter:
    """A full-precision draft model.

    Args:
        engine: Its sequences.
    """

    def __init__(self, engine: SequenceEngine) -> None:
        self.engine = engine

    @property
    def page_count(self) -> int:
        """KV pages in all."""
        return self.engine.pages.page_count

    @property
    def free_page_count(self) -> int:
        """KV pages that could be allocated now."""
        return self.engine.pages.free_page_count

    def live_keys(self) -> list[Hashable]:
        """Sequences that hold pages."""
        return self.engine.live_keys()

    def release(self, keys: Sequence[Hashable]) -> None:
        """Frees sequences; unknown ones are no error."""
        self.engine.release_where(keys)

    def propose(self, items: Sequence[DraftItem]) -> tuple[list[Proposal | Failure], int]:
        """Catches up on the committed tokens, then drafts token by token."""
        outcomes = self.engine.advance([_first_advance(item) for item in items])
        drafts: dict[int, _Draft] = {}
        for index, (item, outcome) in enumerate(zip(items, outcomes, strict=True)):
            if isinstance(outcome, Advanced):
                self.engine.keep(item.key, outcome.computed_length, publish=True)
                history = History(self.engine.tokens(item.key), item.sampling) if item.sampling else None
                drafts[index] = _Draft(item=item, outcome=outcome, history=history)
        rows = {index: draft.outcome for index, draft in drafts.items() if len(draft.outcome.rows)}
        sample_ns = 0
        while rows:
            started = time.perf_counter_ns()
            extended = [index for index, row in rows.items() if self._draft_one(drafts[index], row)]
            sample_ns += time.perf_counter_ns() - started
            rows = self._advance_drafts({index: drafts[index] for index in extended})
        return [
            self._proposal(drafts[index]) if index in drafts else _as_failure(outcome)
            for index, outcome in enumerate(outcomes)
        ], sample_ns

    def _draft_one(self, draft: _Draft, row: Advanced) -> bool:
        """Samples the next draft; false when drafting must stop here."""
        assert draft.item.sampling is not None
        assert draft.history is not None
        drawn = sample(row.logits[0], draft.item.sampling, draft.history, want_probability=True)
        if not drawn.finite:
            draft.failure = Failure(
                reason=FailureReason.NON_FINITE, message="the draft model's logits are not finite"
            )
            return False
        draft.token_ids.append(drawn.token_id)
        draft.confidences.append(drawn.probability or 0.0)
        draft.history.append(drawn.token_id)
        return draft.wants_more and len(self.engine.tokens(draft.item.key)) < self.engine.context_length

    def _advance_drafts(self, drafts: dict[int, _Draft]) -> dict[int, Advanced]:
        """Computes the last draft of each sequence; one that finds no page stops drafting."""
        advances = [
            _next_advance(draft, len(self.engine.tokens(draft.item.key))) for draft in drafts.values()
        ]
        rows: dict[int, Advanced] = {}
        for (index, draft), outcome in zip(drafts.items(), self.engine.advance(advances), strict=True):
            if isinstance(outcome, Advanced):
                rows[index] = outcome
            elif outcome.reason is not FailureReason.OUT_OF_PAGES:
                draft.failure = outcome
        return rows

    def _proposal(self, draft: _Draft) -> Proposal | Failure:
        if draft.failure is not None:
            return draft.failure
        return Proposal(
            computed_length=len(self.engine.tokens(draft.item.key)),
            cached_token_count=draft.outcome.cached_token_count,
            draft_token_ids=tuple(draft.token_ids),
            confidences=tuple(draft.confidences),
        )


def _as_failure(outcome: Advanced | Failure) -> Failure:
    assert isinstance(outcome, Failure)
    return outcome


def _first_advance(item: DraftItem) -> Advance:
    return Advance(
        key=item.key,
        epoch=item.epoch,
        committed_length=item.committed_length,
        token_ids=item.token_ids,
        logit_count=1 if item.max_draft_tokens else 0,
        max_compute_tokens=item.max_compute_tokens,
        variant=FP16,
    )


def _next_advance(draft: _Draft, length: int) -> Advance:
    return Advance(
        key=draft.item.key,
        epoch=draft.item.epoch,
        committed_length=length,
        token_ids=draft.token_ids[-1:],
        logit_count=1,
        max_compute_tokens=None,
        variant=FP16,
    )
