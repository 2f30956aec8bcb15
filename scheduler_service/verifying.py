"""The target's side of the batch: messages to the verify service, its pages, its connection."""

import time
from collections.abc import Sequence

from scheduler_service.batch import ReleaseList
from scheduler_service.metrics import SchedulerMetrics
from scheduler_service.peers import VerifyInfo
from scheduler_service.request import Request
from scheduler_service.step import StepPart
from scheduler_service.step_trace import VERIFY_METHOD, StepTrace, timing_attributes
from scheduler_service.wire import releases
from scheduler_service.worker_link import WorkerLink
from scheduler_service.worker_stream import Exchange
from spearhead.errors import DeadlineExceeded, SpearheadError
from spearhead.v1 import verify_pb2

VerifyLink = WorkerLink[VerifyInfo, verify_pb2.StepRequest, verify_pb2.StepResponse]
StepExchange = Exchange[verify_pb2.StepResponse]


class Verifying:
    """Talks to the verify service.

    Args:
        link: The verify service.
        release_list: Sequences that it may forget.
        metrics: Where failures are counted.
        timeout_s: For one step.

    Attributes:
        page_size: Tokens in a KV page of the connection that :meth:`renew` took over.
        max_sequence_tokens: Most tokens that it computes for one sequence in a step; ``None`` = no limit.
        free_page_count: Pages that could be allocated when the last step ended.
        variant: The variant that computed the last step.
    """

    def __init__(
        self, link: VerifyLink, release_list: ReleaseList, metrics: SchedulerMetrics, *, timeout_s: float
    ) -> None:
        self._link = link
        self._releases = release_list
        self._metrics = metrics
        self._timeout_s = timeout_s
        self._session = 0
        self.page_size = 1
        self.max_sequence_tokens: int | None = None
        self.free_page_count = 0
        self.variant = ""

    @property
    def ready(self) -> bool:
        """Whether steps can be sent."""
        return self._link.ready

    @property
    def problem(self) -> str:
        """What is wrong with the service, in words, and for how long."""
        return f"{self._link.name} is {self._link.status} (for {time.monotonic() - self.since_s:.0f} s)"

    @property
    def since_s(self) -> float:
        """Monotonic time at which it became ready, or was lost."""
        return self._link.since_s

    @property
    def info(self) -> VerifyInfo | None:
        """What it said in the last handshake; ``None`` = there was none yet."""
        return self._link.info

    @property
    def session(self) -> int:
        """Number of its connection."""
        return self._link.session

    @property
    def kv_cache_usage(self) -> float:
        """Share of its pages in use, 0..1; 0 while it is away."""
        if self._link.info is None or not self.settled:
            return 0.0
        return 1.0 - self.free_page_count / max(1, self._link.info.model.kv_page_count)

    @property
    def releases_pending(self) -> bool:
        """Whether it is to be told that sequences ended."""
        return self.ready and self._releases.pending(self._link.session)

    @property
    def settled(self) -> bool:
        """Whether it is connected and :meth:`renew` took the connection over."""
        return self.ready and self._session == self._link.session

    def renew(self) -> bool:
        """Takes a new connection over, with which everything that the service held is gone.

        Returns:
            Whether there is a new one.
        """
        info = self._link.info
        if self._session == self._link.session or info is None:
            return False
        self._session = self._link.session
        self.page_size = info.model.kv_page_size
        self.max_sequence_tokens = info.model.max_compute_tokens or None
        self.free_page_count = info.model.kv_page_count
        self.variant = info.variant
        return True

    def attach(self, request: Request) -> None:
        """Makes the state of a request one about this connection."""
        request.verify.attach(self._session)

    def pages(self, tokens: int) -> int:
        """Pages that hold so many tokens."""
        return -(-tokens // self.page_size)

    async def exchange(
        self, parts: Sequence[StepPart], trace: StepTrace, step_id: int
    ) -> StepExchange | SpearheadError:
        """Sends a step and waits for its result; returns why the step as a whole failed."""
        span = trace.call(VERIFY_METHOD, time.monotonic())
        message = verify_pb2.StepRequest(
            step_id=step_id,
            traceparent=span.traceparent,
            releases=releases(self._releases.take(self._link.session)),
        )
        for part in parts:
            part.add_to(message)
        try:
            exchange = await self._link.exchange(message, self._timeout_s)
        except SpearheadError as error:
            span.end(time.monotonic(), error.message)
            self._metrics.step_failed()
            if isinstance(error, DeadlineExceeded):
                await self._link.drop(error.message)
            return error
        span.end(exchange.end_s, attributes=timing_attributes(exchange))
        self.free_page_count = exchange.reply.free_page_count
        self.variant = exchange.reply.variant
        return exchange
