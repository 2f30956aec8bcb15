"""What a plan is made from and what it says: the data of planning, without any decision."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Literal, NamedTuple

from scheduler_service.decode_batch import DecodeBatch
from scheduler_service.step_cost import FEW_ROWS

PolicyKind = Literal["table", "static", "linear"]
Limiting = Literal["none", "slo", "tokens", "pages"]


class PromptView(NamedTuple):
    """One running sequence whose prompt is not computed yet.

    Attributes:
        sequence_id: Repeated in the plan.
        pending_token_count: Tokens that the target has not seen, at least 1.
        context_length: Tokens whose KV the target holds.
        ttft_slo_s: Wanted time to the first token; None = no wish.
        waited_s: Seconds since arrival.
        priority: Higher first, -100..100.
    """

    sequence_id: int
    pending_token_count: int
    context_length: int
    ttft_slo_s: float | None = None
    waited_s: float = 0.0
    priority: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BatchView:
    """Everything a plan depends on, besides the table and the configuration.

    Attributes:
        decoding: Sequences of which only the token sampled last is pending.
        prompts: The other running ones, in order of admission.
        draft_available: The drafter is connected and agrees on the vocabulary.
        page_size: Tokens in a KV page of the target.
        free_page_count: Pages of the target that could be allocated now.
        max_step_tokens: Most rows of one target forward pass.
        max_sequence_tokens: Most of them for one sequence; None = no limit.
    """

    decoding: DecodeBatch
    prompts: Sequence[PromptView]
    draft_available: bool
    page_size: int
    free_page_count: int
    max_step_tokens: int
    max_sequence_tokens: int | None = None


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
        decoding_ids: Decoding sequences, in order of admission; each computes its pending token.
        draft_counts: Drafts to ask for and to verify after it, one number for each of them.
        chunks: Parts of prompts, the most urgent first.
        resting_ids: All other running sequences: nothing is computed for them in this step.
        predicted_s: Predicted duration of draft and verify with their round trips; None without a table.
        predicted_verify_s: Of it, the verifier's own time; None without a table.
        predicted_draft_s: Of it, the drafter's own time; None without its table.
        expected_token_count: Tokens that the step is expected to commit.
        limiting: What kept the step from being larger. ``pages`` with decoding sequences left out, or with
            nothing planned, calls for a preemption.
        budget_s: Time that the tightest SLO leaves for this step; None = no SLO.
        memory: For the next plan.
    """

    decoding_ids: tuple[int, ...]
    draft_counts: tuple[int, ...]
    chunks: tuple[PlannedSequence, ...]
    resting_ids: tuple[int, ...]
    predicted_s: float | None
    predicted_verify_s: float | None
    predicted_draft_s: float | None
    expected_token_count: float
    limiting: Limiting
    budget_s: float | None
    memory: PlanMemory

    @property
    def sequence_count(self) -> int:
        """Sequences that take part; 0 = nothing can be done."""
        return len(self.decoding_ids) + len(self.chunks)

    @property
    def sequences(self) -> tuple[PlannedSequence, ...]:
        """Everything that the step computes: decoding sequences, then chunks. Made anew at each call."""
        decoding = zip(self.decoding_ids, repeat(1), self.draft_counts, strict=False)
        # Three times faster than calling the class, which 256 sequences notice.
        return (*map(tuple.__new__, repeat(PlannedSequence), decoding), *self.chunks)


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
