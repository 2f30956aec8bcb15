"""What each sequence gets in the next step: a pure function over plain data.

There is no prefill phase and no decode phase. A sequence has tokens that the target has not seen; the plan
says how many of them it computes in this step and how many drafts are verified with them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scheduler_service.decode_batch import DecodeBatch
from scheduler_service.draft_choice import DraftLimits, DraftOption, DraftPricing
from scheduler_service.latency_table import LatencyTable
from scheduler_service.prefill_choice import Chunk, Clock, Room, by_urgency, choose_chunks
from scheduler_service.step_plan import (
    BatchView,
    Correction,
    Limiting,
    PlanMemory,
    PlannedSequence,
    PolicyConfig,
    PromptView,
    StepPlan,
)
from scheduler_service.worker_costs import WorkerCosts, worker_costs

__all__ = [
    "BatchView", "Correction", "PlanMemory", "PlannedSequence", "PolicyConfig", "PromptView", "StepPlan",
    "plan",
]  # fmt: skip

_FRESH = PlanMemory()
_UNCORRECTED = Correction()


def plan(
    view: BatchView,
    table: LatencyTable | None,
    config: PolicyConfig,
    *,
    memory: PlanMemory = _FRESH,
    correction: Correction = _UNCORRECTED,
) -> StepPlan:
    """Chooses the next step.

    Decoding sequences come first, each with its row. Drafts are then chosen for the most tokens a second
    within what the tightest SLO leaves, at the prices beside the prompt chunks that fit without drafts; what
    room is left goes to the most urgent prompts.

    Args:
        view: The batch.
        table: Measured latencies; may be None for ``static``. Without draft measurements only ``static``
            drafts.
        config: The policy.
        memory: ``memory`` of the last plan.
        correction: Factors on the predictions.

    Returns:
        The step.

    Raises:
        ConfigError: The policy needs a table and there is none.
    """
    step = _Step.begin(view, worker_costs(table, config, correction), config, memory)
    option = plain = step.pricing.plain() if step.pricing else None
    chunks, limiting = step.chunks_beside(plain)
    if plain and step.may_draft:
        option = step.choose_drafts(plain, chunks, step.least if chunks or step.due else [], memory)
        if option is not plain:
            chunks, limiting = step.chunks_beside(option)
    if step.due and not chunks:
        chunks = step.least
    return step.finish(option, chunks, limiting, memory)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """A step in the making: what is fixed before drafts and chunks are chosen.

    Attributes:
        view: The whole batch.
        config: The policy.
        costs: Cost models; None without a table.
        batch: Decoding sequences of the step.
        pricing: Prices their drafts; None when there are none.
        may_draft: Drafts are possible.
        left_out: What kept other decoding sequences out of the step.
        prompts: Sequences that wait for their prompt, most urgent first.
        due: Prompts have waited long enough; they make their least progress now.
        least: The least progress: no chunk or one.
        max_rows: Rows of the step.
        plain_page_count: Pages that the decoding sequences need without drafts; 0 without prompts.
        budget_s: What the tightest SLO leaves; None = no SLO, or no table to keep it by.
    """

    view: BatchView
    config: PolicyConfig
    costs: WorkerCosts | None
    batch: DecodeBatch
    pricing: DraftPricing | None
    may_draft: bool
    left_out: Limiting
    prompts: Sequence[PromptView]
    due: bool
    least: list[Chunk]
    max_rows: int
    plain_page_count: int
    budget_s: float | None

    @classmethod
    def begin(
        cls, view: BatchView, costs: WorkerCosts | None, config: PolicyConfig, memory: PlanMemory
    ) -> "_Step":
        static = config.kind == "static"
        max_rows = min(view.max_step_tokens, config.static_step_tokens) if static else view.max_step_tokens
        prompts = view.prompts
        if len(prompts) > 1:
            prompts = by_urgency(prompts, aging_s=config.aging_s)
        due = bool(prompts) and memory.steps_without_prefill + 1 >= config.max_steps_without_prefill
        most = max_rows if view.max_sequence_tokens is None else min(max_rows, view.max_sequence_tokens)
        least_tokens = min(-(-config.min_prefill_tokens // view.page_size) * view.page_size, most)
        reserved = min(least_tokens, prompts[0].pending_token_count) if due else 0
        available = view.draft_available and (static or (costs is not None and costs.draft is not None))
        batch = view.decoding.with_drafts(available=available, max_lag=config.max_draft_lag)
        batch, left_out = batch.fit(max_rows - reserved, view.free_page_count, view.page_size)
        least: list[Chunk] = []
        pages = 0
        if prompts:
            pages = batch.plain_page_count(view.page_size)
            tokens = min(least_tokens, max_rows - batch.count)
            least = choose_chunks(prompts[:1], _room(view, max_rows, tokens, pages), None)[0]
        return cls(
            view=view,
            config=config,
            costs=costs,
            batch=batch,
            pricing=DraftPricing(batch, costs) if batch.count else None,
            may_draft=available and bool(np.count_nonzero(batch.draft_caps)),
            left_out=left_out,
            prompts=prompts,
            due=due,
            least=least,
            max_rows=max_rows,
            plain_page_count=pages,
            budget_s=view.decoding.budget_s if costs else None,
        )

    def chunks_beside(self, option: DraftOption | None) -> tuple[list[Chunk], Limiting]:
        """The largest chunks beside the decoding sequences with these drafts."""
        if not self.prompts:
            return [], "none"
        rows, pages = 0, self.plain_page_count
        if option:
            rows = option.rows
            if rows > self.batch.count:
                pages = int(self.batch.pages(option.draft_counts, self.view.page_size).sum())
        clock = None
        if option and self.costs and self.budget_s is not None:
            clock = Clock(
                cost=self.costs.target,
                factor=self.costs.target_factor,
                rows=rows,
                fixed_s=self.costs.target_factor * option.attention_s
                + self.costs.draft_factor * option.draft_s
                + self._hops_s(option),
                budget_s=self.budget_s,
            )
        return choose_chunks(
            self.prompts, _room(self.view, self.max_rows, self.max_rows - rows, pages), clock
        )

    def choose_drafts(
        self, plain: DraftOption, chunks: Sequence[Chunk], reserved: Sequence[Chunk], memory: PlanMemory
    ) -> DraftOption:
        """Drafts when ``chunks`` fit beside ``plain`` and ``reserved`` must fit beside any; or ``plain``."""
        assert self.pricing
        reserved_rows = sum(chunk.token_count for chunk in reserved)
        if self.config.kind == "static":
            room = (self.max_rows - reserved_rows - self.batch.count) // self.batch.count
            option = self._static_drafts(plain, min(self.config.static_draft_tokens, room), reserved)
        else:
            limits = DraftLimits(
                max_rows=self.max_rows,
                budget_s=self.budget_s,
                other_rows=sum(chunk.token_count for chunk in chunks),
                least_rows=reserved_rows,
                least_s=self._attention_s(reserved),
                ended=sum(chunk.last for chunk in chunks),
                gain=1.0 if memory.drafting else 1.0 + self.config.draft_margin,
            )
            option = self.pricing.best(plain, limits)
        return self._within_pages(option, plain, sum(chunk.page_count for chunk in reserved))

    def _within_pages(self, option: DraftOption, plain: DraftOption, reserved_pages: int) -> DraftOption:
        """Fewer drafts where there are no pages for them; none where the rest no longer pays."""
        free, page_size = self.view.free_page_count, self.view.page_size
        # A row needs a new page at most.
        if option is plain or option.rows + reserved_pages <= free:
            return option
        pages = int(self.batch.pages(option.draft_counts, page_size).sum())
        least = self.batch.plain_page_count(page_size)
        if pages + reserved_pages <= max(free, least + reserved_pages):
            return option
        assert self.pricing
        option = self.pricing.option(np.minimum(option.draft_counts, self.batch.draft_room(page_size)))
        pays = self.config.kind == "static" or self._rate(option) >= self._rate(plain)
        return option if pays and option.rows > plain.rows else plain

    def _rate(self, option: DraftOption) -> float:
        """Expected tokens a second of the decoding sequences alone."""
        step_s = self._step_s(option, [])
        return option.expected_tokens / step_s if step_s else 0.0

    def _static_drafts(self, plain: DraftOption, wanted: int, reserved: Sequence[Chunk]) -> DraftOption:
        """``wanted`` drafts for each sequence, or the most that the tightest SLO leaves time for."""
        assert self.pricing
        for count in range(wanted, 0, -1):
            option = self.pricing.option(np.minimum(self.batch.draft_caps, count))
            if not self.costs or self.budget_s is None or self._step_s(option, reserved) <= self.budget_s:
                return option
        return plain

    def finish(
        self, option: DraftOption | None, chunks: Sequence[Chunk], limiting: Limiting, memory: PlanMemory
    ) -> StepPlan:
        """The plan with its predictions."""
        verify_s = draft_s = step_s = None
        if self.costs is not None and (option or chunks):
            verify_s = self._verify_s(option, chunks)
            draft_s = self.costs.draft_factor * option.draft_s if option else 0.0
            step_s = verify_s + draft_s + self._hops_s(option)
        if self.left_out != "none":
            limiting = self.left_out
        elif limiting == "none" and step_s and self.budget_s is not None and step_s > self.budget_s:
            limiting = "slo"
        ended = sum(chunk.last for chunk in chunks)
        return StepPlan(
            decoding_ids=tuple(self.batch.sequence_ids.tolist()),
            draft_counts=self._draft_counts(option),
            resting_ids=self._resting_ids(chunks),
            chunks=tuple(PlannedSequence(chunk.sequence_id, chunk.token_count, 0) for chunk in chunks),
            predicted_s=step_s,
            predicted_verify_s=verify_s,
            predicted_draft_s=draft_s,
            expected_token_count=(option.expected_tokens if option else 0.0) + ended,
            limiting=limiting,
            budget_s=self.budget_s,
            memory=PlanMemory(
                drafting=option.rows > self.batch.count if option else memory.drafting,
                steps_without_prefill=memory.steps_without_prefill + 1 if self.prompts and not chunks else 0,
            ),
        )

    def _draft_counts(self, option: DraftOption | None) -> tuple[int, ...]:
        if option is None or option.rows == self.batch.count:
            return (0,) * self.batch.count
        return tuple(option.draft_counts.tolist())

    def _resting_ids(self, chunks: Sequence[Chunk]) -> tuple[int, ...]:
        chosen = {chunk.sequence_id for chunk in chunks}
        resting = [prompt.sequence_id for prompt in self.prompts if prompt.sequence_id not in chosen]
        if self.left_out != "none":
            resting += np.setdiff1d(self.view.decoding.sequence_ids, self.batch.sequence_ids).tolist()
        return tuple(resting)

    def _step_s(self, option: DraftOption, chunks: Sequence[Chunk]) -> float:
        assert self.costs
        draft_s = self.costs.draft_factor * option.draft_s
        return self._verify_s(option, chunks) + draft_s + self._hops_s(option)

    def _verify_s(self, option: DraftOption | None, chunks: Sequence[Chunk]) -> float:
        assert self.costs
        cost = self.costs.target
        verified = option.rows if option else 0
        rows = verified + sum(chunk.token_count for chunk in chunks)
        sampled = verified + sum(chunk.last for chunk in chunks)
        attention_s = (option.attention_s if option else 0.0) + self._attention_s(chunks)
        return self.costs.target_factor * (cost.forward.at(rows) + cost.head.at(sampled) + attention_s)

    def _attention_s(self, chunks: Sequence[Chunk]) -> float:
        assert self.costs
        return sum(self.costs.target.attention(c.token_count, c.context_length) for c in chunks)

    def _hops_s(self, option: DraftOption | None) -> float:
        drafting = option is not None and option.rows > self.batch.count
        return self.config.hop_s * (2 if drafting else 1)


def _room(view: BatchView, max_rows: int, tokens: int, decode_pages: int) -> Room:
    """What is left for chunks of so many tokens beside decoding sequences that need so many pages."""
    return Room(
        tokens=tokens,
        pages=view.free_page_count - decode_pages,
        page_size=view.page_size,
        granule=min(view.page_size, max_rows, view.max_sequence_tokens or max_rows),
        sequence_tokens=view.max_sequence_tokens,
    )
