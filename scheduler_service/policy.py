"""What each sequence gets in the next step: a pure function over plain data.

There is no prefill phase and no decode phase. A sequence has tokens that the target has not seen; the plan
says how many of them it computes in this step and how many drafts are verified with them.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from scheduler_service.latency_table import LatencyTable

PolicyKind = Literal["table", "static", "linear"]
Limiting = Literal["none", "slo", "tokens", "pages"]


class SequenceView(NamedTuple):
    """One running sequence as the policy sees it. A named tuple, for 256 of them are read in a step.

    Attributes:
        sequence_id: Repeated in the plan.
        pending_token_count: Tokens that the target has not seen: the rest of the prompt, or 1 when decoding.
        context_length: Tokens whose KV the target holds.
        decoding: The prompt is computed and a token was sampled.
        max_draft_tokens: Most drafts this step (request, server, rest of max_tokens and context); 0 = off.
        draft_lag: Tokens that the drafter must compute besides the usual one before its first draft.
        acceptance: Estimated probability that the next draft token is accepted, 0..1.
        itl_slo_s: Wanted time between tokens; None = no wish.
        ttft_slo_s: Wanted time to the first token; None = no wish.
        waited_s: Seconds since arrival.
        since_last_token_s: Seconds since the last token was committed; 0 before the first.
        priority: Higher first, -100..100.
    """

    sequence_id: int
    pending_token_count: int
    context_length: int
    decoding: bool
    max_draft_tokens: int = 0
    draft_lag: int = 0
    acceptance: float = 0.0
    itl_slo_s: float | None = None
    ttft_slo_s: float | None = None
    waited_s: float = 0.0
    since_last_token_s: float = 0.0
    priority: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchView:
    """Everything a plan depends on, besides the table and the configuration.

    Attributes:
        sequences: The running ones, in order of admission.
        draft_available: The drafter is connected and agrees on the vocabulary.
        page_size: Tokens in a KV page of the target.
        free_page_count: Pages of the target that could be allocated now.
        max_step_tokens: Most rows of one target forward pass.
    """

    sequences: tuple[SequenceView, ...]
    draft_available: bool
    page_size: int
    free_page_count: int
    max_step_tokens: int


class PlannedSequence(NamedTuple):
    """What one sequence does in the step.

    Attributes:
        sequence_id: From the view.
        compute_token_count: Pending tokens to compute, at least 1.
        draft_token_count: Drafts to ask for and to verify after them; 0 for a prompt chunk.
    """

    sequence_id: int
    compute_token_count: int
    draft_token_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanMemory:
    """What the next plan must know of the last one; pass ``StepPlan.memory`` on.

    Attributes:
        drafting: The last plan asked for drafts (hysteresis).
        steps_without_prefill: Plans since a waiting prompt made progress.
    """

    drafting: bool = False
    steps_without_prefill: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """The next step.

    Attributes:
        sequences: Planned ones in order of admission; the others rest for this step. Empty = nothing to do.
        predicted_s: Predicted duration of draft and verify together; None without a table.
        predicted_draft_s: Of it, the draft passes; None without a table.
        expected_token_count: Tokens that the step is expected to commit.
        limiting: What kept the step from being larger.
        budget_s: Time that the tightest SLO leaves for this step; None = no SLO.
        memory: For the next plan.
    """

    sequences: tuple[PlannedSequence, ...]
    predicted_s: float | None
    predicted_draft_s: float | None
    expected_token_count: float
    limiting: Limiting
    budget_s: float | None
    memory: PlanMemory


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """Measured over predicted time, see :class:`scheduler_service.latency_table.OnlineCorrection`."""

    target: float = 1.0
    draft: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyConfig:
    """How steps are planned.

    Attributes:
        kind: ``table`` uses the measured latencies; ``linear`` a straight line fitted to them (baseline);
            ``static`` a fixed token budget and draft length (baseline, needs no table).
        static_step_tokens: Token budget of a static step.
        static_draft_tokens: Draft length of a static step.
        min_prefill_tokens: Least progress of a waiting prompt when an SLO leaves no room; rounded to pages.
        max_steps_without_prefill: After so many steps without progress, the least progress is made anyway.
        draft_margin: Drafting starts when it promises this share more tokens a second than plain decoding,
            and goes on until it promises fewer.
        max_draft_lag: A drafter further behind a sequence than this many tokens does not draft for it.
        aging_s: A waiting prompt gains one point of priority in this time.
        hop_s: One round trip to a worker beyond its own time, seconds.
    """

    kind: PolicyKind = "table"
    static_step_tokens: int = 512
    static_draft_tokens: int = 3
    min_prefill_tokens: int = 16
    max_steps_without_prefill: int = 4
    draft_margin: float = 0.03
    max_draft_lag: int = 16
    aging_s: float = 1.0
    hop_s: float = 0.0005


def plan(
    view: BatchView,
    table: LatencyTable | None,
    config: PolicyConfig,
    *,
    memory: PlanMemory = PlanMemory(),
    correction: Correction = Correction(),
) -> StepPlan:
    """Chooses the next step.

    Args:
        view: The batch.
        table: Measured latencies; may be None for ``static``.
        config: The policy.
        memory: ``memory`` of the last plan.
        correction: Factors on the predictions.

    Returns:
        The step. With ``limiting == "pages"`` and decoding sequences left out, the caller should preempt.

    Raises:
        ConfigError: The policy needs a table and there is none.
    """
    budget = min(view.max_step_tokens, config.static_step_tokens)
    pages = view.free_page_count
    planned: dict[int, PlannedSequence] = {}
    limiting: Limiting = "none"
    expected = 0.0
    for sequence in sorted(view.sequences, key=lambda s: not s.decoding):
        room = min(budget, _room(sequence.context_length, pages, view.page_size))
        if sequence.decoding:
            count = sequence.pending_token_count
            if room < count:
                limiting = "tokens" if budget < count else "pages"
                continue
            drafts = min(sequence.max_draft_tokens, config.static_draft_tokens, room - count)
            drafts = drafts if view.draft_available else 0
        else:
            count, drafts = min(sequence.pending_token_count, room), 0
            if count < sequence.pending_token_count:
                count -= count % view.page_size
                limiting = "tokens" if room == budget else "pages"
            if count < 1:
                continue
        total = count + drafts
        budget -= total
        pages -= _pages(sequence.context_length + total, view.page_size) - _pages(
            sequence.context_length, view.page_size
        )
        expected += 1.0
        planned[sequence.sequence_id] = PlannedSequence(sequence.sequence_id, count, drafts)
    return StepPlan(
        sequences=tuple(planned[s.sequence_id] for s in view.sequences if s.sequence_id in planned),
        predicted_s=None,
        predicted_draft_s=None,
        expected_token_count=expected,
        limiting=limiting,
        budget_s=None,
        memory=memory,
    )


def _pages(tokens: int, page_size: int) -> int:
    return -(-tokens // page_size)


def _room(context_length: int, pages: int, page_size: int) -> int:
    """Tokens that fit behind ``context_length`` into its last page and ``pages`` more."""
    return (_pages(context_length, page_size) + pages) * page_size - context_length
