"""What a plan is made from and what it says: the data of planning, without any decision."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from scheduler_service.step_cost import FEW_ROWS

PolicyKind = Literal["table", "static", "linear"]
Limiting = Literal["none", "slo", "tokens", "pages"]


class SequenceView(NamedTuple):
    """One running sequence as the policy sees it. A named tuple, for 256 of them are read in a step.

    Attributes:
        sequence_id: Repeated in the plan.
        pending_token_count: Tokens that the target has not seen: the rest of the prompt, at least 1; exactly
            1 when decoding.
        context_length: Tokens whose KV the target holds.
        decoding: The prompt is computed and a token was sampled.
        max_draft_tokens: Most drafts this step (request, server, rest of max_tokens and context), at most 16;
            0 = off.
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
        sequences: Decoding ones in order of admission, then prompts, the most urgent first. The others rest
            for this step. Empty = nothing can be done.
        predicted_s: Predicted duration of draft and verify with their round trips; None without a table.
        predicted_verify_s: Of it, the verifier's own time; None without a table.
        predicted_draft_s: Of it, the drafter's own time; None without its table.
        expected_token_count: Tokens that the step is expected to commit.
        limiting: What kept the step from being larger. ``pages`` with decoding sequences left out, or with
            nothing planned, calls for a preemption.
        budget_s: Time that the tightest SLO leaves for this step; None = no SLO.
        memory: For the next plan.
    """

    sequences: tuple[PlannedSequence, ...]
    predicted_s: float | None
    predicted_verify_s: float | None
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


_LEAST = {
    "static_step_tokens": 1,
    "static_draft_tokens": 0,
    "min_prefill_tokens": 1,
    "max_steps_without_prefill": 1,
    "draft_margin": 0,
    "max_draft_lag": 0,
    "hop_s": 0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyConfig:
    """How steps are planned.

    Attributes:
        kind: ``table`` uses the measured latencies; ``linear`` a straight line fitted to them (baseline);
            ``static`` a fixed token budget and draft length (baseline, needs no table).
        static_step_tokens: Token budget of a static step; decoding sequences get theirs first.
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

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            if not getattr(self, name) >= least:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least {least}")
        if self.static_draft_tokens >= FEW_ROWS:
            raise ValueError(
                f"static_draft_tokens is {self.static_draft_tokens}; it must be at most {FEW_ROWS - 1}"
            )
        if not self.aging_s > 0:
            raise ValueError(f"aging_s is {self.aging_s}; it must be greater than 0")
