"""The loop of one engine: plan, propose, verify, apply. It waits for workers, never for clients."""

import asyncio
import time
from collections.abc import Sequence

from opentelemetry.trace import Tracer

from scheduler_service.applying import Applier
from scheduler_service.batch import Batch
from scheduler_service.drafting import Drafting
from scheduler_service.lifecycle import Lifecycle
from scheduler_service.metrics import SchedulerMetrics
from scheduler_service.placement import Place, Placement
from scheduler_service.planner import Planner
from scheduler_service.proposals import Proposals
from scheduler_service.recovery import Recovery
from scheduler_service.request import Request
from scheduler_service.room import Room
from scheduler_service.step import StepPart, computed_token_counts
from scheduler_service.step_plan import PlannedSequence, StepPlan
from scheduler_service.step_trace import StepTrace
from scheduler_service.tracing import WallClock
from scheduler_service.verifying import StepExchange, Verifying
from spearhead.errors import SpearheadError

Member = tuple[Request, PlannedSequence]


class Loop:
    """Runs the batch of one verify worker.

    Args:
        place: The worker, as a place for requests.
        placement: Hands out requests.
        batch: Those that run here.
        lifecycle: Moves them.
        applier: Applies results.
        verifying: The target's side.
        drafting: The draft side.
        planner: Plans steps.
        recovery: Handles failures.
        room: Plans what fits into the pages.
        metrics: Where steps are counted.
        tracer: Where spans go.
        clock: Converts times for spans.
        min_catch_up_tokens: Tokens that a lagging drafter computes beside a step, at least.
        max_draft_lag: A drafter further behind is brought up to date before it drafts.
        verify_wait_s: A request without a deadline waits so long for a lost verify service.
        first_step_id: Steps are numbered from here.

    Attributes:
        step_count: Steps completed.
        step_start_s: Monotonic start of the step under way; ``None`` = there is none.
        last_progress_s: Monotonic time of the last completed turn, or of the last time that work came.
    """

    def __init__(
        self,
        *,
        place: Place,
        placement: Placement,
        batch: Batch,
        lifecycle: Lifecycle,
        applier: Applier,
        verifying: Verifying,
        drafting: Drafting,
        planner: Planner,
        recovery: Recovery,
        room: Room,
        metrics: SchedulerMetrics,
        tracer: Tracer,
        clock: WallClock,
        min_catch_up_tokens: int,
        max_draft_lag: int,
        verify_wait_s: float,
        first_step_id: int,
    ) -> None:
        self._place = place
        self._placement = placement
        self._batch = batch
        self._lifecycle = lifecycle
        self._applier = applier
        self._verifying = verifying
        self._drafting = drafting
        self._planner = planner
        self._recovery = recovery
        self._room = room
        self._metrics = metrics
        self._tracer = tracer
        self._clock = clock
        self._min_catch_up_tokens = min_catch_up_tokens
        self._rows_to_catch_up = 0
        self._max_draft_lag = max_draft_lag
        self._verify_wait_s = verify_wait_s
        self._wake = asyncio.Event()
        self._step_id = first_step_id - 1
        self.step_count = 0
        self.step_start_s: float | None = None
        self.last_progress_s = time.monotonic()

    @property
    def busy(self) -> bool:
        """Whether there are requests that could make progress now."""
        return self._verifying.ready and (
            self._batch.running_count > 0 or self._placement.wanted(self._place)
        )

    def wake(self) -> None:
        """Something changed: a request came or went, a worker came or went."""
        self._wake.set()

    async def run(self) -> None:
        """Works until cancelled."""
        try:
            while True:
                self._wake.clear()
                if self.busy or self._verifying.releases_pending or self._drafting.releases_pending:
                    await self._turn()
                else:
                    await self._rest()
        finally:
            await self._drafting.close()

    async def _rest(self) -> None:
        """Waits for a change. While the worker is lost its requests go elsewhere, or rest, or give up."""
        timeout_s = None
        if not self._verifying.ready:
            self._placement.leave(self._place, time.monotonic())
            timeout_s = self._placement.lost_since_s() + self._verify_wait_s - time.monotonic()
            if timeout_s <= 0:
                self._placement.give_up_waiting(self._verifying.problem)
                timeout_s = None
        try:
            async with asyncio.timeout(timeout_s):
                await self._wake.wait()
        except TimeoutError:
            return
        self.last_progress_s = time.monotonic()

    async def _turn(self) -> None:
        start_s = time.monotonic()
        plan = None
        if self._verifying.ready:
            if self._verifying.renew():
                self._placement.renewed(self._place, start_s)
                for request in self._batch.running:
                    self._verifying.attach(request)
            self._placement.admit(start_s)
            self._drafting.begin_step(self._step_id + 1, self._batch.running)
            plan = self._room.plan(self._step_id + 1)
        if plan is None or not plan.sequence_count:
            await self._send_releases()
        else:
            self.step_start_s = start_s
            await self._step(plan, start_s)
            self.step_start_s = None
        self.last_progress_s = time.monotonic()

    async def _send_releases(self) -> None:
        """Frees on both workers at once what ended, when no step would carry the news.

        When no step has room for anybody, the answer also tells how many pages are free by now.
        """
        self._step_id += 1
        trace = self._trace(self._batch.running, "engine.release")
        messages: list[asyncio.Task[object]] = []
        if self._verifying.releases_pending or (self._verifying.ready and self._batch.running_count):
            messages.append(asyncio.create_task(self._verifying.exchange((), trace, self._step_id)))
        if self._drafting.releases_pending:
            messages.append(asyncio.create_task(self._drafting.send_releases(trace)))
        # Even with nothing to send, others get their turn.
        await (asyncio.wait(messages) if messages else asyncio.sleep(0))
        trace.end(time.monotonic(), {})

    async def _step(self, plan: StepPlan, start_s: float) -> None:
        self._step_id += 1
        by_id = {request.sequence_id: request for request in self._batch.running}
        members = [(by_id[planned.sequence_id], planned) for planned in plan.sequences]
        trace = self._trace([request for request, _ in members], "engine.step", start_s)
        trace.part("schedule", start_s, time.monotonic())
        session = self._verifying.session
        proposals = await self._propose(members, trace)
        parts = _parts(members, proposals)
        if not parts or session != self._verifying.session:  # Everybody left meanwhile, or the target did.
            trace.end(time.monotonic(), {})
            return
        self._catch_up(members, sum(part.row_count for part in parts))
        for part in parts:
            part.request.verify.held = True
            self._lifecycle.resume(part.request, start_s)
            if not part.decoding:
                part.request.trace.prefilling(start_s)
        exchange = await self._verifying.exchange(parts, trace, self._step_id)
        if isinstance(exchange, SpearheadError):
            self._recovery.step_failed(parts, exchange, start_s)
            for part in parts:
                trace.member(part.request, {"tokens": 0, "drafted": len(part.draft_token_ids)})
            trace.end(time.monotonic(), {"spearhead.batch.requests": len(parts)}, exchange.message)
            return
        self._applier.apply(parts, proposals, exchange, trace, step_id=self._step_id, start_s=start_s)
        computed = computed_token_counts(parts, exchange.reply.results)
        self._learn(plan, parts, computed, proposals, exchange)
        self.step_count += 1
        end_s = time.monotonic()
        draft_count = sum(len(part.draft_token_ids) for part in parts)
        self._metrics.step(end_s - start_s, tokens=sum(computed) + draft_count)
        trace.part("emit", exchange.end_s, end_s)
        trace.end(end_s, self._step_attributes(parts, computed, exchange))

    async def _propose(self, members: Sequence[Member], trace: StepTrace) -> Proposals:
        wanted = [
            (request, planned.draft_token_count)
            for request, planned in members
            if planned.draft_token_count and self._may_draft(request)
        ]
        return await self._drafting.propose(wanted, trace)

    def _may_draft(self, request: Request) -> bool:
        return self._drafting.can_draft_for(request) and self._drafting.lag(request) <= self._max_draft_lag

    def _catch_up(self, members: Sequence[Member], row_count: int) -> None:
        """Brings the drafter up to date beside the target's step, where drafts are wanted or soon will be.

        While drafts do not pay, prompts are left alone: on a shared processor the drafter would only slow the
        target down. When they pay again, the plan asks for drafts and the sequences catch up then.
        """
        lagging = []
        for request, planned in members:
            if request.ended or not self._drafting.can_draft_for(request):
                continue
            lag = self._drafting.lag(request)
            if (planned.draft_token_count and lag > self._max_draft_lag) or (
                self._planner.drafts_pay and lag and not request.decoding
            ):
                lagging.append(request)
        lagging.sort(key=lambda request: not request.decoding)
        # Rows of steps during which the drafter was busy count too: a long prompt would leave it far behind.
        self._rows_to_catch_up += row_count
        budget = max(self._rows_to_catch_up, self._min_catch_up_tokens)
        if self._drafting.start_catch_up(
            lagging, budget, lambda caught: self._trace(caught, "draft.catch_up")
        ):
            self._rows_to_catch_up = 0

    def _learn(
        self,
        plan: StepPlan,
        parts: Sequence[StepPart],
        computed: Sequence[int],
        proposals: Proposals,
        exchange: StepExchange,
    ) -> None:
        as_planned = [(p.compute_token_count, p.draft_token_count) for p in plan.sequences] == [
            (part.compute_token_count, len(part.draft_token_ids)) for part in parts
        ]
        # Errors, cached prefixes and divided chunks make a step shorter than its prediction was meant for.
        all_computed = as_planned and list(computed) == [part.compute_token_count for part in parts]
        self._planner.carried_out(
            plan,
            draft_s=proposals.worker_s if as_planned else None,
            verify_s=exchange.worker_s if all_computed else None,
        )
        self._metrics.prediction_ratio.set(self._planner.prediction_ratio)

    def _trace(self, members: Sequence[Request], name: str, start_s: float | None = None) -> StepTrace:
        return StepTrace(
            self._tracer,
            self._clock,
            name=name,
            step_id=self._step_id,
            start_s=time.monotonic() if start_s is None else start_s,
            members=members,
        )

    def _step_attributes(
        self, parts: Sequence[StepPart], computed: Sequence[int], exchange: StepExchange
    ) -> dict[str, int | str]:
        decoding = [part for part in parts if part.decoding]
        return {
            "spearhead.worker.verify": self._batch.worker,
            "spearhead.batch.requests": len(parts),
            "spearhead.batch.prefill_tokens": sum(
                count for part, count in zip(parts, computed, strict=True) if not part.decoding
            ),
            "spearhead.batch.decode_tokens": len(decoding),
            "spearhead.batch.draft_tokens": sum(len(part.draft_token_ids) for part in decoding),
            "spearhead.kv.blocks_free": self._verifying.free_page_count,
            "spearhead.queue.waiting": self._placement.waiting_count,
            "spearhead.step.loop_lag_ns": int(exchange.loop_lag_s * 1e9),
        }


def _parts(members: Sequence[Member], proposals: Proposals) -> list[StepPart]:
    """The parts of those that are still there, with the drafts that came."""
    parts = []
    for request, planned in members:
        proposal = proposals.by_sequence.get(planned.sequence_id)
        drafts = proposal.token_ids if proposal is not None else []
        if not request.ended:
            parts.append(StepPart.of(request, planned.compute_token_count, drafts))
    return parts
