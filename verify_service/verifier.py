"""Verification: advance every sequence, sample at each position, accept the drafts that agree.

A draft is accepted iff it equals what the target samples at its position with the shared noise. So the
emitted tokens are the target's own samples, whoever drafted, and however many were drafted.
"""

import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from torch import Tensor

from spearhead.model.checkpoint import FP16
from spearhead.model.drawing import Draw, Drawn, DrawRequest, draw_each
from spearhead.model.engine import Advance, Advanced, Failure, FailureReason, SequenceEngine
from spearhead.model.sampling import Logprobs, SamplingParameters


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyItem:
    """New tokens of one sequence; see ``StepItem`` in the contract.

    Attributes:
        key: The sequence.
        epoch: Restarts of the sequence so far.
        committed_length: Tokens whose KV must be held.
        token_ids: Tokens from there on; the last ``draft_count`` are drafts.
        draft_count: Drafts among ``token_ids``.
        max_compute_tokens: Bound on tokens computed now; ``None`` = all.
        sampling: How to sample; ``None`` = compute KV only.
        full_precision: Verify with the full-precision weights whatever variant serves.
        logprob_count: Alternatives to report; ``None`` = no log-probabilities.
    """

    key: Hashable
    epoch: int
    committed_length: int
    token_ids: Sequence[int]
    draft_count: int
    max_compute_tokens: int | None
    sampling: SamplingParameters | None
    full_precision: bool
    logprob_count: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """What the target made of an item.

    Attributes:
        computed_length: Tokens whose KV is valid now.
        cached_token_count: Of these, taken from the prefix cache by this step.
        computed_token_count: Tokens that this step computed, drafts that were refused included.
        emitted: Accepted drafts, then the target's next token; empty when nothing was sampled.
        logprobs: One for each emitted token, when asked for.
        margin: Smallest gap between the two best logits among the emitted tokens.
    """

    computed_length: int
    cached_token_count: int
    computed_token_count: int
    emitted: tuple[int, ...] = ()
    logprobs: tuple[Logprobs, ...] = ()
    margin: float | None = None

    @property
    def accepted_count(self) -> int:
        """Drafts accepted."""
        return max(len(self.emitted) - 1, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedStep:
    """The result of one step.

    Attributes:
        outcomes: One an item, in order.
        sample_ns: Time spent on sampling and acceptance.
        variant: The weights that computed items of default precision.
    """

    outcomes: list[Verified | Failure]
    sample_ns: int
    variant: str


class Verifier:
    """Owns the engine and the choice of the served variant; used from the model thread.

    Args:
        engine: Sequences and weights.
        variant: Served first.
        draw: Draws tokens where the engine's logits are.
    """

    def __init__(self, engine: SequenceEngine, variant: str, draw: Draw = draw_each) -> None:
        self.engine = engine
        self._variant = variant
        self._draw = draw

    @property
    def variant(self) -> str:
        """The weights that serve items of default precision."""
        return self._variant

    def set_variant(self, variant: str) -> str:
        """Serves ``variant`` from the next step on; returns what served before.

        KV of another variant is never used: the next item of each running sequence gets a cache miss and
        its caller prefills again, as if the new variant had computed everything.
        """
        previous, self._variant = self._variant, variant
        return previous

    def step(self, items: Sequence[VerifyItem], released: Sequence[Hashable] = ()) -> VerifiedStep:
        """Computes one step, after freeing ``released``."""
        self.engine.release_where(released)
        advanced = self.engine.advance([self._to_advance(item) for item in items])
        started = time.perf_counter_ns()
        requests = [self._request(item, outcome) for item, outcome in zip(items, advanced, strict=True)]
        drawn = iter(self._draw([request for request in requests if request is not None]))
        outcomes = [
            self._computed(item, outcome) if request is None else self._accept(item, outcome, next(drawn))
            for item, outcome, request in zip(items, advanced, requests, strict=True)
        ]
        return VerifiedStep(
            outcomes=outcomes, sample_ns=time.perf_counter_ns() - started, variant=self._variant
        )

    def _to_advance(self, item: VerifyItem) -> Advance:
        return Advance(
            key=item.key,
            epoch=item.epoch,
            committed_length=item.committed_length,
            token_ids=item.token_ids,
            logit_count=0 if item.sampling is None else item.draft_count + 1,
            max_compute_tokens=item.max_compute_tokens,
            variant=FP16 if item.full_precision else self._variant,
        )

    def _request(self, item: VerifyItem, outcome: Advanced | Failure) -> DrawRequest | None:
        """What is to be drawn; ``None`` = nothing."""
        if isinstance(outcome, Failure) or item.sampling is None or not len(outcome.rows):
            return None
        return DrawRequest(
            logits=outcome.rows,
            tokens=self.engine.tokens(item.key),
            draft_count=item.draft_count,
            law=item.sampling,
            logprob_count=item.logprob_count,
        )

    def _computed(self, item: VerifyItem, outcome: Advanced | Failure) -> Verified | Failure:
        """An item of which nothing was drawn."""
        if isinstance(outcome, Failure):
            return outcome
        # Drafts that the bound on tokens let through were not judged: they are no part of the sequence.
        committed = item.committed_length + len(item.token_ids) - item.draft_count
        computed = min(outcome.computed_length, committed)
        self.engine.keep(item.key, computed, publish=True)
        return Verified(
            computed_length=computed,
            cached_token_count=outcome.cached_token_count,
            computed_token_count=_computed_count(item, outcome),
        )

    def _accept(
        self, item: VerifyItem, outcome: Advanced | Failure, drawn: Sequence[Drawn]
    ) -> Verified | Failure:
        assert isinstance(outcome, Advanced), "nothing is drawn for an item that failed"
        known = len(self.engine.tokens(item.key)) - item.draft_count
        computed = known + len(drawn) - 1
        if not drawn[-1].sample.finite:
            self.engine.keep(item.key, item.committed_length, publish=False)
            return _non_finite(computed, outcome.rows[len(drawn) - 1])
        self.engine.keep(item.key, computed, publish=True)
        return Verified(
            computed_length=computed,
            cached_token_count=outcome.cached_token_count,
            computed_token_count=_computed_count(item, outcome),
            emitted=tuple(one.sample.token_id for one in drawn),
            logprobs=tuple(one.logprobs for one in drawn if one.logprobs is not None),
            margin=min(one.sample.margin for one in drawn),
        )


def _computed_count(item: VerifyItem, outcome: Advanced) -> int:
    return outcome.computed_length - item.committed_length - outcome.cached_token_count


def _non_finite(position: int, row: Tensor) -> Failure:
    bad = int(row.isfinite().logical_not().sum())
    return Failure(
        reason=FailureReason.NON_FINITE,
        message=f"{bad} of {len(row)} logits at position {position} are NaN or infinite; the weights or the "
        "compute type do not fit this input, try model.dtype = 'float32'",
    )
