"""The scheduler behind its front door: all parts put together, and what a servicer may ask of them."""

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from opentelemetry.trace import Span

from scheduler_service.accounting import Accounting
from scheduler_service.addresses import Addresses, Resolve, Shared
from scheduler_service.admission import QueueLimits
from scheduler_service.caller_metrics import CallerMetrics
from scheduler_service.config import SchedulerConfig
from scheduler_service.delivery import OutputChannel
from scheduler_service.engine import Engine
from scheduler_service.latency_table import LatencyTable
from scheduler_service.lifecycle import Lifecycle
from scheduler_service.links import LinkFactory
from scheduler_service.metrics import SchedulerMetrics
from scheduler_service.output import OutputAssembler
from scheduler_service.peers import VerifyInfo
from scheduler_service.placement import Placement
from scheduler_service.pool import Pool
from scheduler_service.request import Request
from scheduler_service.requests import Requests
from scheduler_service.spec import GenerationSpec
from scheduler_service.tracing import RequestTrace, WallClock
from scheduler_service.validation import RequestLimits
from scheduler_service.wire import RETRY_AFTER_S
from spearhead.errors import NotReady
from spearhead.rpc.caller import ANONYMOUS, Caller
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
        resolve: Looks up the DNS names of workers; ``None`` = as the system does.

    Attributes:
        requests: The living requests.
        pool: The engines that compute them.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        tokenizer: Tokenizer,
        telemetry: Telemetry,
        *,
        table: LatencyTable | None = None,
        on_change: Callable[[], None] = lambda: None,
        resolve: Resolve | None = None,
    ) -> None:
        self._config = config
        self._tokenizer = tokenizer
        self._tracer = telemetry.tracer
        self._table = table
        self._clock = WallClock()
        self._on_change = on_change
        self._sequence_ids = itertools.count(1)
        self._draining = False
        self._metrics = SchedulerMetrics(telemetry.registry)
        self._links = LinkFactory(
            config.limits, tokenizer.hash, table, self._metrics, on_change=self._worker_changed
        )
        self.requests = Requests(on_room=lambda: self.pool.wake())
        telemetry.registry.register(CallerMetrics(self.requests.callers))
        self._lifecycle = Lifecycle(self.requests, self._metrics, aging_s=config.policy.aging_s)
        engines: list[Engine] = []
        self._placement = Placement(
            self.requests,
            self._lifecycle,
            engines,
            max_running_requests=config.limits.max_running_requests,
        )
        self._verify = Addresses(config.verify, resolve)
        draft = Addresses(config.draft, resolve) if config.draft is not None else None
        self._drafters = Shared(draft) if draft is not None else None
        self.pool = Pool(
            self._verify,
            draft,
            engines,
            self._placement,
            self._make_engine,
            resolve_interval_s=config.limits.resolve_interval_s,
        )
        self._metrics.watch(
            running=lambda: self.requests.running_count,
            waiting=lambda: len(self.requests.waiting),
            kv_cache_usage=lambda: self.pool.kv_cache_usage,
            last_step_age_s=lambda: time.monotonic() - self.pool.last_progress_s,
        )

    @property
    def ready(self) -> bool:
        """Whether new requests can be served."""
        return self.pool.ready

    @property
    def target(self) -> VerifyInfo:
        """What a verify service said of itself.

        Raises:
            NotReady: None was ever connected.
        """
        return self.pool.target

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[asyncio.Task[None]]:
        """Connects the workers and runs the engines; yields a task, which ends only by a defect."""
        engines = asyncio.create_task(self.pool.run())
        try:
            yield engines
        finally:
            engines.cancel()
            await asyncio.wait([engines])

    def check_integrity(self) -> None:
        """Checks that every owner of state knows of the same requests."""
        self.requests.check_integrity([r for engine in self.pool.engines for r in engine.batch.running])
        for engine in self.pool.engines:
            engine.batch.check_integrity()

    def drain(self) -> None:
        """From now on the load says that the server drains."""
        self._draining = True

    def limits(self, caller: Caller = ANONYMOUS) -> RequestLimits:
        """What a request may ask for, and what one of this caller gets that asks for nothing.

        Raises:
            NotReady: Every verify service is away.
        """
        model = self.target.model
        if not self.ready:
            raise NotReady(self.pool.problem, retry_after_s=RETRY_AFTER_S)
        most_tokens, most_priority = caller.limits.max_output_tokens, caller.limits.max_priority
        default_tokens = self._config.limits.default_max_tokens
        return RequestLimits(
            vocab_size=self._tokenizer.vocab_size,
            context_length=model.context_length,
            eos_token_ids=frozenset(model.eos_token_ids or self._tokenizer.eos_token_ids),
            max_prompt_bytes=self._config.limits.max_prompt_bytes,
            default_max_tokens=default_tokens if most_tokens is None else min(default_tokens, most_tokens),
            default_priority=0 if most_priority is None else min(0, most_priority),
            kv_page_size=model.kv_page_size,
            kv_page_count=model.kv_page_count,
            keeps_itl=self._table is not None,
        )

    def check_room(self, caller: Caller = ANONYMOUS) -> None:
        """Refuses early, before a prompt is tokenised.

        Raises:
            Overloaded: Too many requests wait.
            QuotaExceeded: Too many of this caller, or it sends too fast.
        """
        free_places = self._free_places()
        self.requests.waiting.check_room(free_places, self._queue_limits())
        self.requests.callers.check(caller, free_places=free_places, now_s=time.monotonic())

    def submit(
        self,
        spec: GenerationSpec,
        *,
        arrival_s: float,
        deadline_s: float | None,
        server_span: Span,
        caller: Caller = ANONYMOUS,
    ) -> Request:
        """Lets a request wait for its turn; its output comes through ``request.channel``.

        Args:
            spec: What is asked for.
            arrival_s: Monotonic time of its arrival.
            deadline_s: Monotonic time by which it must end; ``None`` = no deadline.
            server_span: The span of its RPC.
            caller: Whose it is.

        Raises:
            RequestExists: Its id is taken.
            Overloaded: There is no room.
            QuotaExceeded: The caller may not have it.
        """
        free_places = self._free_places()
        self.requests.waiting.check_fits(spec, free_places, self._queue_limits())
        self.requests.callers.admit(caller, spec, free_places=free_places, now_s=time.monotonic())
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
            caller=caller,
        )
        self._lifecycle.add(request)
        request.trace.describe(spec, self.target.model.model, caller=caller.name)
        self.pool.wake()
        return request

    def cancel(self, request: Request) -> None:
        """Nobody wants the rest of a request; one that has ended stays as it is."""
        if not request.ended:
            self._lifecycle.cancel(request)
            self.pool.wake()

    def abort(self, request_id: str) -> bool:
        """Ends a request by name; ``False`` when there is none."""
        request = self.requests.get(request_id)
        if request is None:
            return False
        self._lifecycle.abort(request)
        self.pool.wake()
        return True

    def load(self) -> Load:
        """How busy it is."""
        return Load(
            running_requests=self.requests.running_count,
            waiting_requests=len(self.requests.waiting),
            waiting_tokens=self.requests.waiting.token_count,
            kv_cache_usage=self.pool.kv_cache_usage,
            step_count=self.pool.step_count,
            draining=self._draining,
        )

    def _make_engine(self, number: int, address: str) -> Engine:
        drafters = self._drafters
        links = (
            self._links.verify(lambda: self._verify.target(address)),
            None if drafters is None else self._links.draft(lambda: drafters.choose(number)),
        )
        return Engine(
            number,
            address,
            links,
            config=self._config,
            table=self._table,
            vocab_size=self._tokenizer.vocab_size,
            requests=self.requests,
            lifecycle=self._lifecycle,
            placement=self._placement,
            metrics=self._metrics,
            tracer=self._tracer,
            clock=self._clock,
            on_leave=lambda: None if drafters is None else drafters.leave(number),
        )

    def _worker_changed(self) -> None:
        engines = self.pool.engines
        self._metrics.verify_up.set(sum(engine.ready for engine in engines))
        self._metrics.draft_up.set(sum(engine.drafting.available for engine in engines))
        self.pool.worker_changed()
        self._on_change()

    def _free_places(self) -> int:
        places = self._config.limits.max_running_requests * max(1, len(self.pool.ready_engines))
        return max(0, places - self.requests.running_count)

    def _queue_limits(self) -> QueueLimits:
        limits, model = self._config.limits, self.target.model
        tokens = sum(e.target.page_size * e.target.page_count for e in self.pool.ready_engines if e.target)
        pages = max(model.kv_page_count, tokens // model.kv_page_size)
        return QueueLimits(
            max_requests=limits.max_waiting_requests,
            max_tokens=limits.max_waiting_tokens,
            max_pages=int(limits.max_waiting_page_factor * pages),
            page_size=model.kv_page_size,
        )
