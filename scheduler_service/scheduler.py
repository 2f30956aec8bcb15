"""The scheduler behind its front door: all parts put together, and what a servicer may ask of them."""

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from opentelemetry.trace import Span

from scheduler_service.accounting import Accounting
from scheduler_service.admission import QueueLimits
from scheduler_service.applying import Applier
from scheduler_service.batch import Batch
from scheduler_service.config import SchedulerConfig
from scheduler_service.delivery import OutputChannel
from scheduler_service.draft_patience import DraftPatience
from scheduler_service.drafting import Drafting
from scheduler_service.latency_table import LatencyTable
from scheduler_service.lifecycle import Lifecycle
from scheduler_service.link_trace import LinkTrace
from scheduler_service.links import make_links
from scheduler_service.loop import Loop
from scheduler_service.metrics import SchedulerMetrics
from scheduler_service.output import OutputAssembler
from scheduler_service.peers import VerifyInfo
from scheduler_service.planner import Planner
from scheduler_service.recovery import Recovery
from scheduler_service.request import Request
from scheduler_service.room import Room
from scheduler_service.spec import GenerationSpec
from scheduler_service.tracing import RequestTrace, WallClock
from scheduler_service.validation import RequestLimits
from scheduler_service.verifying import Verifying
from scheduler_service.wire import RETRY_AFTER_S
from scheduler_service.worker_link import LinkState
from spearhead.errors import NotReady, StartupError
from spearhead.telemetry import Telemetry
from spearhead.tokenizer import IncrementalDetokenizer, Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How busy the scheduler is; fields as in ``GetLoadResponse``."""

    running_requests: int
    waiting_requests: int
    waiting_tokens: int
    kv_cache_usage: float
    step_count: int
    draining: bool


class Scheduler:
    """Accepts requests and runs them to their end, while :meth:`running` is entered.

    Args:
        config: The configuration.
        tokenizer: The target's.
        telemetry: Where spans and metrics go.
        table: Measured latencies; ``None`` = the policy needs none.
        on_change: Called when a worker comes or goes.

    Attributes:
        batch: The living requests.
        verifying: The target's side.
        drafting: The draft side.
        loop: The engine loop.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        tokenizer: Tokenizer,
        telemetry: Telemetry,
        *,
        table: LatencyTable | None = None,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        limits = config.limits
        self._config = config
        self._tokenizer = tokenizer
        self._tracer = telemetry.tracer
        self._clock = WallClock()
        self._on_change = on_change
        self._sequence_ids = itertools.count(1)
        self._draining = False
        metrics = self._metrics = SchedulerMetrics(telemetry.registry)
        batch = self.batch = Batch()
        self._verify_link, self._draft_link = make_links(
            config, tokenizer.hash, table, metrics, on_change=self._worker_changed
        )
        links = (self._verify_link, self._draft_link)
        self._link_traces = [LinkTrace(self._tracer, self._clock, link) for link in links if link is not None]
        self.verifying = Verifying(
            self._verify_link, batch.verify_releases, metrics, timeout_s=limits.verify_timeout_s
        )
        self.drafting = Drafting(
            self._draft_link,
            batch.draft_releases,
            metrics,
            vocab_size=tokenizer.vocab_size,
            patience=DraftPatience(limits.draft_timeout_s, limits.max_draft_timeouts),
        )
        planner = self._planner = Planner(
            config.policy,
            table,
            config.acceptance,
            self.drafting,
            max_draft_tokens=limits.max_draft_tokens,
            max_step_tokens=limits.max_step_tokens,
        )
        self._lifecycle = Lifecycle(batch, self.drafting, planner, metrics, aging_s=config.policy.aging_s)
        recovery = Recovery(batch, self._lifecycle, metrics, max_failed_steps=limits.max_failed_steps)
        room = Room(
            batch,
            self._lifecycle,
            self.verifying,
            planner,
            recovery,
            max_running_requests=limits.max_running_requests,
        )
        self.loop = Loop(
            batch=batch,
            applier=Applier(
                self._lifecycle, recovery, self.verifying, self.drafting, vocab_size=tokenizer.vocab_size
            ),
            lifecycle=self._lifecycle,
            verifying=self.verifying,
            drafting=self.drafting,
            planner=planner,
            recovery=recovery,
            room=room,
            metrics=metrics,
            tracer=self._tracer,
            clock=self._clock,
            min_catch_up_tokens=limits.min_catch_up_tokens,
            max_draft_lag=config.policy.max_draft_lag,
            verify_wait_s=limits.verify_wait_s,
        )
        metrics.watch(
            running=lambda: batch.running_count,
            waiting=lambda: len(batch.waiting),
            kv_cache_usage=lambda: self.verifying.kv_cache_usage,
            last_step_age_s=lambda: time.monotonic() - self.loop.last_progress_s,
        )

    @property
    def ready(self) -> bool:
        """Whether new requests can be served."""
        return self.verifying.ready

    @property
    def target(self) -> VerifyInfo:
        """What the verify service said of itself.

        Raises:
            NotReady: It was never connected.
        """
        info = self.verifying.info
        if info is None:
            raise NotReady(self.verifying.problem, retry_after_s=RETRY_AFTER_S)
        return info

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[asyncio.Task[None]]:
        """Connects the workers and runs the loop; yields the loop's task, which ends only by a defect."""
        links = [link for link in (self._verify_link, self._draft_link) if link is not None]
        tasks = [asyncio.create_task(link.run()) for link in links]
        loop = asyncio.create_task(self.loop.run())
        try:
            yield loop
        finally:
            for task in (loop, *tasks):
                task.cancel()
            await asyncio.wait([loop, *tasks])

    def check_start(self) -> None:
        """Tells a verify service that will never do from one that is not there yet.

        Raises:
            StartupError: The verify service answered, and does not fit.
        """
        link = self._verify_link
        if link.state is LinkState.REFUSED and link.info is None:
            raise StartupError(link.detail)

    def check_integrity(self) -> None:
        """Checks that every owner of state knows of the same requests."""
        self.batch.check_integrity()
        self._planner.acceptance.check_integrity({request.row for request in self.batch})
        self.drafting.check_integrity({request.sequence_id for request in self.batch})

    def drain(self) -> None:
        """From now on the load says that the server drains."""
        self._draining = True

    def limits(self) -> RequestLimits:
        """What a request may ask for.

        Raises:
            NotReady: The verify service is away.
        """
        model = self.target.model
        if not self.ready:
            raise NotReady(self.verifying.problem, retry_after_s=RETRY_AFTER_S)
        return RequestLimits(
            vocab_size=self._tokenizer.vocab_size,
            context_length=model.context_length,
            eos_token_ids=frozenset(model.eos_token_ids or self._tokenizer.eos_token_ids),
            max_prompt_bytes=self._config.limits.max_prompt_bytes,
            default_max_tokens=self._config.limits.default_max_tokens,
            kv_page_size=model.kv_page_size,
            kv_page_count=model.kv_page_count,
            keeps_itl=self._planner.keeps_itl,
        )

    def check_room(self) -> None:
        """Refuses early, before a prompt is tokenised.

        Raises:
            Overloaded: Too many requests wait.
        """
        self.batch.waiting.check_room(self._free_places(), self._queue_limits())

    def submit(
        self, spec: GenerationSpec, *, arrival_s: float, deadline_s: float | None, server_span: Span
    ) -> Request:
        """Lets a request wait for its turn; its output comes through ``request.channel``.

        Args:
            spec: What is asked for.
            arrival_s: Monotonic time of its arrival.
            deadline_s: Monotonic time by which it must end; ``None`` = no deadline.
            server_span: The span of its RPC.

        Raises:
            RequestExists: Its id is taken.
            Overloaded: There is no room.
        """
        self.batch.waiting.check_fits(spec, self._free_places(), self._queue_limits())
        request = Request(
            spec,
            sequence_id=next(self._sequence_ids),
            output=OutputAssembler(
                IncrementalDetokenizer(self._tokenizer),
                stop_strings=spec.stop_strings,
                stop_token_ids=spec.stop_token_ids,
                min_tokens=spec.min_tokens,
                max_tokens=spec.max_tokens,
            ),
            channel=OutputChannel(self._config.limits.output_queue_tokens),
            accounting=Accounting(arrival_s),
            trace=RequestTrace(self._tracer, server_span, self._clock),
            deadline_s=deadline_s,
            target=self.target.target,
        )
        self._lifecycle.add(request)
        request.trace.describe(spec, self.target.model.model)
        self.loop.wake()
        return request

    def cancel(self, request: Request) -> None:
        """Nobody wants the rest of a request; one that has ended stays as it is."""
        if not request.ended:
            self._lifecycle.cancel(request)
            self.loop.wake()

    def abort(self, request_id: str) -> bool:
        """Ends a request by name; ``False`` when there is none."""
        request = self.batch.get(request_id)
        if request is None:
            return False
        self._lifecycle.abort(request)
        self.loop.wake()
        return True

    def load(self) -> Load:
        """How busy it is."""
        return Load(
            running_requests=self.batch.running_count,
            waiting_requests=len(self.batch.waiting),
            waiting_tokens=self.batch.waiting.token_count,
            kv_cache_usage=self.verifying.kv_cache_usage,
            step_count=self.loop.step_count,
            draining=self._draining,
        )

    def _worker_changed(self) -> None:
        self._metrics.verify_up.set(self._verify_link.ready)
        self._metrics.draft_up.set(self._draft_link is not None and self._draft_link.ready)
        for trace in self._link_traces:
            trace.update()
        self.loop.wake()
        self._on_change()

    def _free_places(self) -> int:
        return max(0, self._config.limits.max_running_requests - self.batch.running_count)

    def _queue_limits(self) -> QueueLimits:
        limits, model = self._config.limits, self.target.model
        return QueueLimits(
            max_requests=limits.max_waiting_requests,
            max_tokens=limits.max_waiting_tokens,
            max_pages=int(limits.max_waiting_page_factor * model.kv_page_count),
            page_size=model.kv_page_size,
        )
