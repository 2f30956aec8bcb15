"""One verify worker with all that works for it: its batch, its drafter, its loop."""

import asyncio
import time
from collections.abc import Callable

from opentelemetry.trace import Tracer

from scheduler_service.acceptance import AcceptanceTracker
from scheduler_service.applying import Applier
from scheduler_service.batch import Batch
from scheduler_service.config import SchedulerConfig
from scheduler_service.draft_patience import DraftPatience
from scheduler_service.drafting import Drafting, DraftLink
from scheduler_service.latency_table import LatencyTable
from scheduler_service.lifecycle import Lifecycle
from scheduler_service.link_trace import LinkTrace
from scheduler_service.loop import Loop
from scheduler_service.metrics import SchedulerMetrics
from scheduler_service.peers import Target
from scheduler_service.placement import Placement
from scheduler_service.planner import Planner
from scheduler_service.recovery import Recovery
from scheduler_service.request import Request
from scheduler_service.requests import Requests
from scheduler_service.room import Room
from scheduler_service.tracing import WallClock
from scheduler_service.verifying import Verifying, VerifyLink
from spearhead.telemetry import STEPS_PER_ENGINE


class Engine:
    """Runs the requests that one verify worker computes. Steps of several engines overlap.

    Args:
        number: Its number; its steps are numbered from ``number * STEPS_PER_ENGINE + 1``.
        address: Of the verify worker.
        links: To the verify worker, and to whatever drafter it uses; ``None`` = plain decoding.
        config: The configuration.
        table: Measured latencies; ``None`` = the policy needs none.
        vocab_size: Of the target.
        requests: All requests.
        lifecycle: Moves them.
        placement: Hands them out.
        metrics: Where steps are counted.
        tracer: Where spans go.
        clock: Converts times for spans.
        on_leave: Called at the end of :meth:`run`.

    Attributes:
        number: As above.
        address: As above.
        batch: The requests that run here.
        verifying: The target's side.
        drafting: The draft side.
        loop: Its loop.
    """

    def __init__(
        self,
        number: int,
        address: str,
        links: tuple[VerifyLink, DraftLink | None],
        *,
        config: SchedulerConfig,
        table: LatencyTable | None,
        vocab_size: int,
        requests: Requests,
        lifecycle: Lifecycle,
        placement: Placement,
        metrics: SchedulerMetrics,
        tracer: Tracer,
        clock: WallClock,
        on_leave: Callable[[], None],
    ) -> None:
        limits = config.limits
        self.number = number
        self.address = address
        self.link, self.draft_link = links
        self._on_leave = on_leave
        self._traces = [LinkTrace(tracer, clock, link) for link in links if link is not None]
        batch = self.batch = Batch(requests.roster, AcceptanceTracker(config.acceptance), address)
        self.verifying = Verifying(
            self.link, batch.verify_releases, metrics, timeout_s=limits.verify_timeout_s
        )
        self.drafting = Drafting(
            self.draft_link,
            batch.draft_releases,
            metrics,
            vocab_size=vocab_size,
            patience=DraftPatience(limits.draft_timeout_s, limits.max_draft_timeouts),
        )
        planner = Planner(
            config.policy,
            table,
            self.drafting,
            max_draft_tokens=limits.max_draft_tokens,
            max_step_tokens=limits.max_step_tokens,
        )
        recovery = Recovery(requests, batch, lifecycle, metrics, max_failed_steps=limits.max_failed_steps)
        self._room = Room(batch, lifecycle, self.verifying, planner, recovery)
        self.loop = Loop(
            place=self,
            placement=placement,
            batch=batch,
            applier=Applier(lifecycle, batch, recovery, self.verifying, self.drafting, vocab_size=vocab_size),
            lifecycle=lifecycle,
            verifying=self.verifying,
            drafting=self.drafting,
            planner=planner,
            recovery=recovery,
            room=self._room,
            metrics=metrics,
            tracer=tracer,
            clock=clock,
            min_catch_up_tokens=limits.min_catch_up_tokens,
            max_draft_lag=config.policy.max_draft_lag,
            verify_wait_s=limits.verify_wait_s,
            first_step_id=number * STEPS_PER_ENGINE + 1,
        )
        self._lifecycle = lifecycle

    @property
    def ready(self) -> bool:
        """Whether the verify worker is connected."""
        return self.verifying.ready

    @property
    def settled(self) -> bool:
        """Whether it is, and its pages are known."""
        return self.verifying.settled

    @property
    def target(self) -> Target | None:
        """What it serves, or did before it was lost; ``None`` = it was never connected."""
        info = self.verifying.info
        return None if info is None else info.target

    @property
    def problem(self) -> str:
        """What is wrong with it, in words."""
        return self.verifying.problem

    @property
    def since_s(self) -> float:
        """Monotonic time at which it became ready, or was lost."""
        return self.verifying.since_s

    @property
    def step_age_s(self) -> float:
        """For how long the step under way lasts; 0 = there is none."""
        start_s = self.loop.step_start_s
        return 0.0 if start_s is None else time.monotonic() - start_s

    def unclaimed_pages(self) -> int:
        """Free KV pages that the running requests do not need for the tokens they have."""
        return self._room.unclaimed_pages()

    def pages_to_start(self, request: Request) -> int:
        """KV pages that a request needs to start here."""
        return self._room.pages_to_start(request)

    def take(self, request: Request, now_s: float) -> None:
        """Runs a waiting request."""
        target = self.target
        assert target is not None
        request.target = target
        self._lifecycle.start(request, self.batch, now_s)
        self.verifying.attach(request)
        self.loop.wake()

    def changed(self) -> None:
        """Some worker came or went, perhaps one of this engine."""
        for trace in self._traces:
            trace.update()
        self.loop.wake()

    async def run(self) -> None:
        """Connects its workers and runs its loop until cancelled; ends otherwise only by a defect."""
        links = [link for link in (self.link, self.draft_link) if link is not None]
        tasks = [asyncio.create_task(link.run()) for link in links]
        try:
            await self.loop.run()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            self._on_leave()
