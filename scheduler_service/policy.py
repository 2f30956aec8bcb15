"""What each sequence gets in the next step: a pure function over plain data.

There is no prefill phase and no decode phase. A sequence has tokens that the target has not seen; the plan
says how many of them it computes in this step and how many drafts are verified with them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat

import numpy as np

from scheduler_service.decode_batch import DecodeBatch
from scheduler_service.draft_choice import (
    DraftLimits,
    DraftMenu,
    DraftOption,
    WorkerCosts,
    draft_menu,
    price,
)
from scheduler_service.latency_table import LatencyTable
from scheduler_service.prefill_choice import Chunk, Clock, Room, by_urgency, choose_chunks
from scheduler_service.step_plan import (
    BatchView,
    Correction,
    Limiting,
    PlanMemory,
    PlannedSequence,
    PolicyConfig,
    SequenceView,
    StepPlan,
)
from spearhead.errors import ConfigError

__all__ = [
    "BatchView", "Correction", "PlanMemory", "PlannedSequence", "PolicyConfig", "SequenceView", "StepPlan",
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
    step = _Step.begin(view, _costs(table, config, correction), config, memory)
    option = step.plain()
    chunks, limiting = step.chunks_beside(option)
    if option and step.batch.draft_caps.any():
        drafted = step.choose_drafts(chunks, step.least if chunks or step.due else [], memory)
        if drafted.rows > option.rows:
            option = drafted
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
        menu: Draft lengths to choose from; None when there is nothing to choose.
        left_out: What kept other decoding sequences out of the step.
        prompts: Sequences that wait for their prompt, most urgent first.
        due: Prompts have waited long enough; they make their least progress now.
        least: The least progress: no chunk or one.
        max_rows: Rows of the step.
        page_count: Pages that the decoding sequences need without drafts.
        budget_s: What the tightest SLO leaves; None = no SLO, or no table to keep it by.
    """

    view: BatchView
    config: PolicyConfig
    costs: WorkerCosts | None
    batch: DecodeBatch
    menu: DraftMenu | None
    left_out: Limiting
    prompts: Sequence[SequenceView]
    due: bool
    least: list[Chunk]
    max_rows: int
    page_count: int
    budget_s: float | None

    @classmethod
    def begin(
        cls, view: BatchView, costs: WorkerCosts | None, config: PolicyConfig, memory: PlanMemory
    ) -> "_Step":
        static = config.kind == "static"
        max_rows = min(view.max_step_tokens, config.static_step_tokens) if static else view.max_step_tokens
        page_size = view.page_size
        prompts: Sequence[SequenceView] = [s for s in view.sequences if not s.decoding]
        decoding = [s for s in view.sequences if s.decoding] if prompts else view.sequences
        if len(prompts) > 1:
            prompts = by_urgency(prompts, aging_s=config.aging_s)
        due = bool(prompts) and memory.steps_without_prefill + 1 >= config.max_steps_without_prefill
        least_tokens = min(-(-config.min_prefill_tokens // page_size) * page_size, max_rows)
        reserved = min(least_tokens, prompts[0].pending_token_count) if due else 0
        draft = view.draft_available and (static or (costs is not None and costs.draft is not None))
        batch = DecodeBatch.of(decoding, draft=draft, max_draft_lag=config.max_draft_lag)
        batch, pages, left_out = _fit(batch, view, max_rows - reserved)
        room = Room(
            tokens=min(least_tokens, max_rows - batch.count),
            pages=view.free_page_count - pages,
            page_size=page_size,
            granule=min(page_size, max_rows),
        )
        return cls(
            view=view,
            config=config,
            costs=costs,
            batch=batch,
            menu=draft_menu(batch, costs) if costs and not static and batch.draft_caps.any() else None,
            left_out=left_out,
            prompts=prompts,
            due=due,
            least=choose_chunks(prompts[:1], room, None)[0] if prompts else [],
            max_rows=max_rows,
            page_count=pages,
            budget_s=batch.budget_s if costs else None,
        )

    def plain(self) -> DraftOption | None:
        """The decoding sequences without drafts; None when there are none."""
        if self.menu:
            return self.menu.option(0)
        if not self.batch.count:
            return None
        return price(self.batch, self.costs, np.zeros(self.batch.count, dtype=np.int64))

    def chunks_beside(self, option: DraftOption | None) -> tuple[list[Chunk], Limiting]:
        """The largest chunks beside the decoding sequences with these drafts."""
        if not self.prompts:
            return [], "none"
        rows, pages = 0, 0
        if option:
            rows = option.rows
            pages = int(self.batch.pages(option.draft_counts, self.view.page_size).sum())
        room = Room(
            tokens=self.max_rows - rows,
            pages=self.view.free_page_count - pages,
            page_size=self.view.page_size,
            granule=min(self.view.page_size, self.max_rows),
        )
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
        return choose_chunks(self.prompts, room, clock)

    def choose_drafts(
        self, chunks: Sequence[Chunk], reserved: Sequence[Chunk], memory: PlanMemory
    ) -> DraftOption:
        """Drafts when ``chunks`` fit beside no drafts and ``reserved`` must fit beside any."""
        batch, page_size = self.batch, self.view.page_size
        reserved_rows = sum(chunk.token_count for chunk in reserved)
        if self.menu is None or self.costs is None:
            room = (self.max_rows - reserved_rows - batch.count) // batch.count
            option = self._static_drafts(max(min(self.config.static_draft_tokens, room), 0), reserved)
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
            option = self.menu.option(self.menu.best(self.costs, limits))
        pages = int(batch.pages(option.draft_counts, page_size).sum())
        reserved_pages = sum(chunk.page_count for chunk in reserved)
        if pages + reserved_pages > max(self.view.free_page_count, self.page_count + reserved_pages):
            within = np.minimum(option.draft_counts, batch.draft_room(page_size))
            option = price(batch, self.costs, within)
            # Cut short by pages, drafts that paid may no longer do.
            if self.menu and self._rate(option) < self._rate(self.menu.option(0)):
                option = self.menu.option(0)
        return option

    def _rate(self, option: DraftOption) -> float:
        """Expected tokens a second of the decoding sequences alone."""
        assert self.costs
        step_s = self._verify_s(option, []) + self.costs.draft_factor * option.draft_s + self._hops_s(option)
        return option.expected_tokens / step_s if step_s else 0.0

    def _static_drafts(self, wanted: int, reserved: Sequence[Chunk]) -> DraftOption:
        """``wanted`` drafts for each sequence, or the most that the tightest SLO leaves time for."""
        batch = self.batch
        while True:
            option = price(batch, self.costs, np.minimum(batch.draft_caps, wanted))
            if not wanted or self.costs is None or self.budget_s is None:
                return option
            step_s = self._verify_s(option, reserved) + self.costs.draft_factor * option.draft_s
            if step_s + self._hops_s(option) <= self.budget_s:
                return option
            wanted -= 1

    def finish(
        self, option: DraftOption | None, chunks: Sequence[Chunk], limiting: Limiting, memory: PlanMemory
    ) -> StepPlan:
        """The plan with its predictions."""
        planned: list[PlannedSequence] = []
        if option:
            decoded = zip(self.batch.sequence_ids, repeat(1), option.draft_counts.tolist(), strict=False)
            # Three times faster than calling the class, which 256 sequences notice.
            planned += map(tuple.__new__, repeat(PlannedSequence), decoded)
        planned += [PlannedSequence(chunk.sequence_id, chunk.token_count, 0) for chunk in chunks]
        ended = sum(chunk.last for chunk in chunks)
        verify_s = draft_s = step_s = None
        if self.costs is not None and planned:
            verify_s = self._verify_s(option, chunks)
            draft_s = self.costs.draft_factor * option.draft_s if option else 0.0
            step_s = verify_s + draft_s + self._hops_s(option)
        if self.left_out != "none":
            limiting = self.left_out
        elif limiting == "none" and step_s and self.budget_s is not None and step_s > self.budget_s:
            limiting = "slo"
        return StepPlan(
            sequences=tuple(planned),
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


def _costs(table: LatencyTable | None, config: PolicyConfig, correction: Correction) -> WorkerCosts | None:
    if table is None:
        if config.kind == "static":
            return None
        raise ConfigError(
            f"policy.kind is {config.kind!r} and there is no latency table; "
            'run `spearhead profile`, or set policy.kind = "static"'
        )
    linear = config.kind == "linear"
    draft = table.draft
    return WorkerCosts(
        target=table.target.linear_cost if linear else table.target.cost,
        draft=None if draft is None else draft.linear_cost if linear else draft.cost,
        target_factor=correction.target,
        draft_factor=correction.draft,
        hop_s=config.hop_s,
    )


def _fit(batch: DecodeBatch, view: BatchView, max_rows: int) -> tuple[DecodeBatch, int, Limiting]:
    """The decoding sequences that fit, the pages they need, and what kept others out."""
    left_out: Limiting = "none"
    if batch.count > max_rows:
        # The longest unserved go first, so that none waits for ever.
        order = np.argsort(-np.array(batch.unserved_s), kind="stable")
        batch, left_out = batch.select(np.sort(order[:max_rows])), "tokens"
    pages = batch.pages(0, view.page_size)
    count = int(pages.sum())
    if count > view.free_page_count:
        fits = (pages == 0) | (pages.cumsum() <= view.free_page_count)
        batch, left_out = batch.select(fits.nonzero()[0]), "pages"
        count = view.free_page_count
    return batch, count, left_out
