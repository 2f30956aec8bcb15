"""What the policy needs to know and to remember, around the pure :func:`scheduler_service.policy.plan`."""

import numpy as np

from scheduler_service.batch import Batch
from scheduler_service.decode_batch import DecodeBatch
from scheduler_service.drafting import Drafting
from scheduler_service.latency_table import LatencyTable, OnlineCorrection
from scheduler_service.policy import plan
from scheduler_service.request import Request
from scheduler_service.roster import DecodingColumns
from scheduler_service.step_plan import (
    BatchView,
    Correction,
    PlanMemory,
    PolicyConfig,
    PromptView,
    StepPlan,
)


class Planner:
    """Plans steps and learns from them.

    Args:
        config: The policy.
        table: Measured latencies; ``None`` = the policy needs none.
        drafting: The draft side.
        max_draft_tokens: Most drafts in a step of one request.
        max_step_tokens: Most rows of a step.
    """

    def __init__(
        self,
        config: PolicyConfig,
        table: LatencyTable | None,
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

    @property
    def prediction_ratio(self) -> float:
        """Measured over predicted time of the target's steps."""
        return self._target_correction.ratio

    @property
    def drafts_pay(self) -> bool:
        """Whether the last step in which drafts were possible had some."""
        return self._drafted_last

    def plan(
        self,
        batch: Batch,
        *,
        step: int,
        page_size: int,
        free_page_count: int,
        max_sequence_tokens: int | None,
        now_s: float,
    ) -> StepPlan:
        """The next step of the running requests."""
        columns, others = batch.split()
        decoding = self._decoding(batch, columns, step, max_sequence_tokens, now_s)
        view = BatchView(
            decoding=decoding,
            prompts=[_prompt(request, now_s) for request in others],
            draft_available=self._drafting.available,
            page_size=page_size,
            free_page_count=free_page_count,
            max_step_tokens=self._max_step_tokens,
            max_sequence_tokens=max_sequence_tokens,
        )
        correction = Correction(target=self._target_correction.ratio, draft=self._draft_correction.ratio)
        result = plan(view, self._table, self._config, memory=self._memory, correction=correction)
        drafted = result.memory.drafting and bool(result.decoding_ids)
        if drafted or np.count_nonzero(decoding.draft_caps):
            self._drafted_last = drafted
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

    def _decoding(
        self,
        batch: Batch,
        columns: DecodingColumns,
        step: int,
        max_sequence_tokens: int | None,
        now_s: float,
    ) -> DecodeBatch:
        limit = min(self._max_draft_tokens, self._drafting.max_draft_tokens)
        if max_sequence_tokens is not None:
            limit = min(limit, max_sequence_tokens - 1)
        caps, lags = self._drafting.prospects(columns, limit)
        return DecodeBatch(
            sequence_ids=columns.sequence_ids,
            contexts=columns.target_lengths,
            draft_caps=caps,
            # A drafter that lags is brought up to date when the policy wants drafts, so that it never works
            # for nothing while drafts do not pay.
            draft_lags=np.minimum(lags, self._config.max_draft_lag),
            acceptances=batch.acceptance.estimates(columns.rows, step),
            itl_slo_s=columns.itl_slo_s,
            since_last_s=now_s - columns.last_token_s,
        )


def _prompt(request: Request, now_s: float) -> PromptView:
    return PromptView(
        request.sequence_id,
        request.pending_token_count,
        request.verify.computed_length,
        request.spec.ttft_slo_s,
        now_s - request.accounting.arrival_s,
        request.spec.priority,
    )
