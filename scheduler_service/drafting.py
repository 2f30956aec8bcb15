"""The draft side of the batch. Whatever happens here changes the speed of a request, never its output."""

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from scheduler_service.batch import ReleaseList
from scheduler_service.decode_batch import Ints
from scheduler_service.draft_patience import DraftPatience
from scheduler_service.metrics import SchedulerMetrics
from scheduler_service.peers import DraftInfo
from scheduler_service.proposals import NO_PROPOSALS, Proposals, add_item, read_proposal
from scheduler_service.request import Request
from scheduler_service.roster import DecodingColumns
from scheduler_service.step import StepPart
from scheduler_service.step_trace import DRAFT_METHOD, StepTrace, timing_attributes
from scheduler_service.wire import RESTART_REASONS, releases
from scheduler_service.worker_link import WorkerLink
from scheduler_service.worker_stream import Exchange
from spearhead.errors import DeadlineExceeded, SpearheadError
from spearhead.v1 import draft_pb2

_logger = logging.getLogger("spearhead.scheduler")

DraftLink = WorkerLink[DraftInfo, draft_pb2.ProposeRequest, draft_pb2.ProposeResponse]

# A sequence that the drafter cannot compute is tried again after so many steps: it may be short of pages,
# and a drafter that fails must not take time from the batch in every step.
_PAUSE_STEPS = 64


class Drafting:
    """Asks the drafter, keeps it up to date, and does without it.

    Args:
        link: The draft service; ``None`` = there is none.
        release_list: Sequences that the drafter may forget.
        metrics: Where failures are counted.
        vocab_size: Drafts at or above it are dropped, with all that follow.
        patience: How long to wait for it.
    """

    def __init__(
        self,
        link: DraftLink | None,
        release_list: ReleaseList,
        metrics: SchedulerMetrics,
        *,
        vocab_size: int,
        patience: DraftPatience,
    ) -> None:
        self._link = link
        self._vocab_size = vocab_size
        self._releases = release_list
        self._metrics = metrics
        self._patience = patience
        self._message_ids = itertools.count(1)
        self._step = 0
        self._session = 0
        self._paused: dict[int, int] = {}  # Sequence id to the step in which it is tried again.
        self._catching_up: set[int] = set()
        self._background: asyncio.Task[None] | None = None

    @property
    def available(self) -> bool:
        """Whether the drafter is connected and agrees on the vocabulary."""
        return self._link is not None and self._link.ready

    @property
    def worker(self) -> str:
        """The drafter, for traces: its address."""
        return "" if self._link is None else self._link.address

    @property
    def status(self) -> str:
        """``ready``, ``absent``, ``lost: …`` or ``refused: …``."""
        return "absent" if self._link is None else self._link.status

    @property
    def info(self) -> DraftInfo | None:
        """What the drafter said of itself; ``None`` = it is not connected."""
        return self._link.info if self._link is not None and self._link.ready else None

    @property
    def max_draft_tokens(self) -> int:
        """Most drafts that the drafter gives for one sequence."""
        info = self.info
        return 0 if info is None else info.max_draft_tokens

    @property
    def inactive_reason(self) -> str:
        """Why no request gets drafts now; empty = they can."""
        if self._link is None:
            return "no draft service"
        return "" if self._link.ready else f"draft service {self._link.status}"

    @property
    def releases_pending(self) -> bool:
        """Whether the drafter is to be told that sequences ended."""
        return self._link is not None and self._link.ready and self._releases.pending(self._link.session)

    def begin_step(self, step: int, running: Iterable[Request]) -> None:
        """Step ``step`` is about to be planned for these requests; a new connection starts from nothing."""
        self._step = step
        if self._paused:
            self._paused = {sequence_id: until for sequence_id, until in self._paused.items() if until > step}
        if self._link is not None and self._session != self._link.session:
            self._session = self._link.session
            self._paused = {}
            for request in running:
                request.draft.attach(self._session)

    def can_draft_for(self, request: Request) -> bool:
        """Whether drafts for the request may be asked for in the next message."""
        return (
            self.available
            and request.wants_drafts
            and request.sequence_id not in self._catching_up
            and request.sequence_id not in self._paused
        )

    def prospects(self, decoding: DecodingColumns, limit: int) -> tuple[Ints, Ints]:
        """Most drafts and the lag of each decoding request, as :meth:`can_draft_for` and :meth:`lag` say.

        Args:
            decoding: The requests.
            limit: Most drafts of any.

        Returns:
            Both, shape (B,) each.
        """
        lags = np.maximum(decoding.lengths - decoding.draft_lengths - 1, 0)
        if not self.available:
            return np.zeros_like(lags), lags
        # The target adds a token of its own.
        caps = np.minimum(decoding.max_lengths - decoding.lengths - 1, decoding.draft_caps)
        caps = np.maximum(np.minimum(caps, limit), 0)
        excluded = self._catching_up.union(self._paused)
        if excluded:
            caps[[sequence_id in excluded for sequence_id in decoding.sequence_ids.tolist()]] = 0
        return caps, lags

    def lag(self, request: Request) -> int:
        """Tokens that the drafter must compute for the request before its first draft, but one."""
        if self._link is not None:
            request.draft.attach(self._link.session)
        return request.draft_lag

    async def propose(self, wanted: Sequence[tuple[Request, int]], trace: StepTrace) -> Proposals:
        """Drafts for some requests; none where the drafter fails.

        Args:
            wanted: Requests that :meth:`can_draft_for`, and how many drafts each.
            trace: The spans of the step.
        """
        if not wanted or self._link is None:
            return NO_PROPOSALS
        message, session = draft_pb2.ProposeRequest(), self._link.session
        items = [add_item(message, request, session, drafts=drafts) for request, drafts in wanted]
        tokens = sum(drafts for _, drafts in wanted) + sum(len(item.token_ids) for item in items) // 4
        # Behind a long catch-up, being late proves nothing.
        exchange = await self._exchange(
            message, trace, self._patience.wait_s(tokens), late_counts=self._background is None
        )
        if exchange is None:
            return NO_PROPOSALS
        self._patience.answered(exchange.round_trip_s, tokens)
        self._link.settle()
        by_sequence = {}
        for (request, drafts), item, result in zip(wanted, items, exchange.reply.results, strict=False):
            if self._usable(request, item, result):
                proposal = read_proposal(request, drafts, item, result, self._vocab_size)
                by_sequence[request.sequence_id] = proposal
                # Until the target has judged the drafts, only the tokens before them are known to stay.
                request.draft.computed_length = min(proposal.computed_length, len(request.token_ids))
        return Proposals(by_sequence=by_sequence, worker_s=exchange.worker_s, network_s=exchange.network_s)

    def judged(self, part: StepPart, proposals: Proposals, accepted: int) -> None:
        """The target accepted some drafts: the drafter's KV of these stays valid."""
        proposal = proposals.by_sequence.get(part.request.sequence_id)
        if proposal is not None and not part.request.ended:
            part.request.draft.computed_length = min(proposal.computed_length, part.known_length + accepted)

    def start_catch_up(
        self,
        wanted: Iterable[Request],
        token_budget: int,
        make_trace: Callable[[Sequence[Request]], StepTrace],
    ) -> bool:
        """Lets the drafter compute known tokens beside the target's step, without waiting for it.

        Does nothing while an earlier one is under way. Tells the drafter of ended sequences too.

        Args:
            wanted: Requests whose tokens it lacks, most urgent first.
            token_budget: Most tokens in all.
            make_trace: Makes the spans of the message, when there is one.

        Returns:
            Whether none was under way.
        """
        if self._background is not None:
            return False
        members = []
        for request in wanted:
            if token_budget < 1:
                break
            missing = len(request.token_ids) - request.draft.computed_length
            members.append((request, request.draft.epoch, min(missing, token_budget)))
            token_budget -= missing
        if members or self.releases_pending:
            self._catching_up = {request.sequence_id for request, _, _ in members}
            trace = make_trace([request for request, _, _ in members])
            self._background = asyncio.create_task(self._catch_up(members, trace))
        return True

    async def send_releases(self, trace: StepTrace) -> None:
        """Tells the drafter at once which sequences ended."""
        await self._exchange(draft_pb2.ProposeRequest(), trace, self._patience.longest_s)

    async def close(self) -> None:
        """Ends what runs in the background."""
        if self._background is not None:
            self._background.cancel()
            await asyncio.wait([self._background])

    async def _catch_up(self, members: Sequence[tuple[Request, int, int]], trace: StepTrace) -> None:
        # Who ended or was preempted since must not be sent: its release may be in the same message.
        alive = [(r, budget) for r, epoch, budget in members if not r.ended and r.draft.epoch == epoch]
        assert self._link is not None
        message, session = draft_pb2.ProposeRequest(), self._link.session
        items = [add_item(message, request, session, token_budget=budget) for request, budget in alive]
        computed: dict[int, int] = {}
        try:
            exchange = await self._exchange(message, trace, self._patience.longest_s)
            results = exchange.reply.results if exchange is not None else ()
            for (request, _), item, result in zip(alive, items, results, strict=False):
                if self._usable(request, item, result):
                    sent = item.committed_length + len(item.token_ids) // 4
                    request.draft.computed_length = held = min(result.computed_length, sent)
                    before = item.committed_length + result.cached_token_count
                    computed[request.sequence_id] = max(held - before, 0)
        finally:
            self._catching_up = set()
            self._background = None
            for request, _ in alive:
                trace.member(request, {"computed_tokens": computed.get(request.sequence_id, 0)})
            trace.end(time.monotonic(), {"spearhead.batch.requests": len(alive)})

    async def _exchange(
        self,
        message: draft_pb2.ProposeRequest,
        trace: StepTrace,
        timeout_s: float,
        *,
        late_counts: bool = True,
    ) -> Exchange[draft_pb2.ProposeResponse] | None:
        link = self._link
        if link is None or not link.ready:
            return None
        span = trace.call(DRAFT_METHOD, time.monotonic())
        message.step_id = next(self._message_ids)
        message.traceparent = span.traceparent
        message.releases.extend(releases(self._releases.take(link.session)))
        try:
            exchange = await link.exchange(message, timeout_s)
        except SpearheadError as error:
            span.end(time.monotonic(), error.message)
            self._metrics.draft_failed()
            if isinstance(error, DeadlineExceeded):
                _logger.warning("decoding without drafts for this step: %s", error.message)
                if late_counts and self._patience.timed_out():
                    await link.drop(f"it does not answer: {error.message}")
            return None
        span.end(exchange.end_s, attributes=timing_attributes(exchange))
        return exchange

    def _usable(
        self, request: Request, item: draft_pb2.ProposeItem, result: draft_pb2.ProposeItemResult
    ) -> bool:
        state = request.draft
        if (result.sequence_id, result.epoch) != (item.sequence_id, state.epoch):
            self._metrics.stale_reply("draft")
            return False
        if request.ended:
            return False
        if not result.HasField("error"):
            return True
        _logger.debug("no drafts for %s: %s", request.request_id, result.error.message)
        self._releases.add(state, request.sequence_id)
        state.restart()
        if result.error.reason not in RESTART_REASONS:
            self._paused[request.sequence_id] = self._step + _PAUSE_STEPS
        return False
