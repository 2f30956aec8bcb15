"""What the policy needs to know and to remember, around the pure :func:`scheduler_service.policy.plan`."""

from scheduler_service.acceptance import AcceptanceConfig, AcceptanceTracker
from scheduler_service.batch import Batch
from scheduler_service.drafting import Drafting
from scheduler_service.latency_table import LatencyTable, OnlineCorrection
from scheduler_service.policy import (
    BatchView,
    Correction,
    PlanMemory,
    PolicyConfig,
    SequenceView,
    StepPlan,
    plan,
)
from scheduler_service.request import Request


class Planner:
    """Plans steps and learns from them.

    Args:
        config: The policy.
        table: Measured latencies; ``None`` = the policy needs none.
        acceptance: How acceptance is estimated.
        drafting: The draft side.
        max_draft_tokens: Most drafts in a step of one request.
        max_step_tokens: Most rows of a step.

    Attributes:
        acceptance: What is known about acceptance.
    """

    def __init__(
        self,
        config: PolicyConfig,
        table: LatencyTable | None,
        acceptance: AcceptanceConfig,
        drafting: Drafting,
        *,
        max_draft_tokens: int,
        max_step_tokens: int,
    ) -> None:
        self._config = config
        self._table = table
        self._drafting = drafting
        self._max_draft_tokens = max_draft_tokens
        self._max_step_tokens = max_step_tokens
        self._memory = PlanMemory()
        self._target_correction = OnlineCorrection()
        self._draft_correction = OnlineCorrection()
        self._drafted_last = True
        self.acceptance = AcceptanceTracker(acceptance)

    @property
    def keeps_itl(self) -> bool:
        """Whether a wanted time between tokens has an effect."""
        return self._table is not None

    @property
    def prediction_ratio(self) -> float:
        """Measured over predicted time of the target's steps."""
        return self._target_correction.ratio

    @property
    def drafts_pay(self) -> bool:
        """Whether the last step in which drafts were possible had some."""
        return self._drafted_last

    def plan(
        self, batch: Batch, *, step: int, page_size: int, free_page_count: int, now_s: float
    ) -> StepPlan:
        """The next step of the running requests."""
        view = BatchView(
            sequences=tuple(self._view(request, step, now_s) for request in batch.running),
            draft_available=self._drafting.available,
            page_size=page_size,
            free_page_count=free_page_count,
            max_step_tokens=self._max_step_tokens,
        )
        correction = Correction(target=self._target_correction.ratio, draft=self._draft_correction.ratio)
        result = plan(view, self._table, self._config, memory=self._memory, correction=correction)
        if any(sequence.max_draft_tokens and sequence.decoding for sequence in view.sequences):
            self._drafted_last = any(planned.draft_token_count for planned in result.sequences)
        return result

    def carried_out(self, result: StepPlan, *, draft_s: float | None, verify_s: float | None) -> None:
        """A plan became a step.

        Args:
            result: The plan.
            draft_s: The drafter's own time; ``None`` = it was not asked for all drafts of the plan.
            verify_s: The target's own time; ``None`` = it did not compute all of the plan.
        """
        if result.predicted_verify_s is not None and verify_s is not None:
            bare_s = result.predicted_verify_s / self._target_correction.ratio
            self._target_correction.observe(predicted_s=bare_s, measured_s=verify_s)
        if result.predicted_draft_s is not None and draft_s is not None:
            bare_s = result.predicted_draft_s / self._draft_correction.ratio
            self._draft_correction.observe(predicted_s=bare_s, measured_s=draft_s)
        self._memory = result.memory

    def _view(self, request: Request, step: int, now_s: float) -> SequenceView:
        drafting, accounting = self._drafting, request.accounting
        limit = min(self._max_draft_tokens, drafting.max_draft_tokens)
        last_s = accounting.last_token_s
        return SequenceView(
            sequence_id=request.sequence_id,
            pending_token_count=request.pending_token_count,
            context_length=request.verify.computed_length,
            decoding=request.decoding,
            max_draft_tokens=request.draft_limit(limit) if drafting.can_draft_for(request) else 0,
            # A drafter that lags is brought up to date when the policy wants drafts, so that it never
            # works for nothing while drafts do not pay.
            draft_lag=min(drafting.lag(request), self._config.max_draft_lag),
            acceptance=self.acceptance.estimate(request.sequence_id, step),
            itl_slo_s=request.spec.itl_slo_s,
            ttft_slo_s=request.spec.ttft_slo_s,
            waited_s=now_s - accounting.arrival_s,
            since_last_token_s=0.0 if last_s is None else now_s - last_s,
            priority=request.spec.priority,
        )
