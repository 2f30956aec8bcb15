"""Which worker computes which request: the least loaded one that can, and another one when it is lost."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from scheduler_service.batch import Batch
from scheduler_service.lifecycle import Lifecycle
from scheduler_service.peers import Target
from scheduler_service.request import Request
from scheduler_service.requests import Requests
from scheduler_service.wire import RETRY_AFTER_S
from spearhead.errors import DeadlineExceeded, NotReady

_LATE_STEP_S = 1.0
"""A worker that computes one step for so long may hang: newcomers go elsewhere."""


class Place(Protocol):
    """A verify worker as a place for requests."""

    number: int
    batch: Batch

    @property
    def ready(self) -> bool:
        """Whether it is connected."""

    @property
    def settled(self) -> bool:
        """Whether it is, and its pages are known."""

    @property
    def target(self) -> Target | None:
        """What it serves, or did before it was lost; ``None`` = it was never connected."""

    @property
    def problem(self) -> str:
        """What is wrong with it, in words."""

    @property
    def since_s(self) -> float:
        """Monotonic time at which it became ready, or was lost."""

    @property
    def step_age_s(self) -> float:
        """For how long the step under way lasts; 0 = there is none."""

    def unclaimed_pages(self) -> int:
        """Free KV pages that the running requests do not need for the tokens they have."""

    def pages_to_start(self, request: Request) -> int:
        """KV pages that a request needs to start there."""

    def take(self, request: Request, now_s: float) -> None:
        """Runs a waiting request."""


@dataclass(slots=True, kw_only=True)
class Space:
    """How full a place is while requests are handed out.

    Attributes:
        place: The place.
        free_pages: KV pages that nobody claims.
        open: Whether more may go there; not after somebody found no room, whom nobody may overtake.
    """

    place: Place
    free_pages: int
    open: bool = True

    def load(self, max_running: int) -> tuple[bool, float, int, int]:
        """The key of the order in which places are filled: by the scarcer of places and pages."""
        place = self.place
        count, target = place.batch.running_count, place.target
        pages = 1 if target is None else max(1, target.page_count)
        share = max(count / max_running, 1 - self.free_pages / pages)
        return place.step_age_s > _LATE_STEP_S, share, count, place.number


def misfit(request: Request, target: Target) -> str:
    """Why a target cannot compute the request or go on with it; empty = it can."""
    emitted = request.output.token_count
    if emitted and request.target.revision != target.revision:
        return (
            f"the verify service came back with other weights: request {request.request_id!r} has "
            f"{emitted} tokens of revision {request.target.revision}, and revision {target.revision} cannot "
            "go on with them; send it again"
        )
    if request.spec.max_length > target.longest:
        return (
            f"the verify service came back with room for {target.longest} tokens a sequence, and "
            f"{request.request_id!r} may need {request.spec.max_length}; ask for fewer tokens"
        )
    return ""


class Placement:
    """Hands waiting requests to places. A request stays where it is until it ends or the place is lost.

    Args:
        requests: All requests.
        lifecycle: Moves them.
        places: The verify workers; others add to the list and take from it.
        max_running_requests: Most requests that run in one place.
    """

    def __init__(
        self,
        requests: Requests,
        lifecycle: Lifecycle,
        places: Sequence[Place],
        *,
        max_running_requests: int,
    ) -> None:
        self._requests = requests
        self._lifecycle = lifecycle
        self._places = places
        self._max_running = max_running_requests

    @property
    def waiting_count(self) -> int:
        """Requests that wait."""
        return len(self._requests.waiting)

    def admit(self, now_s: float) -> None:
        """Starts waiting requests in their order, as long as there is room. An empty place takes any."""
        if not len(self._requests.waiting):
            return
        spaces = [Space(place=p, free_pages=p.unclaimed_pages()) for p in self._places if p.settled]
        for request in tuple(self._requests.waiting):
            if request.deadline_s is not None and now_s >= request.deadline_s:
                self._lifecycle.fail(
                    request, DeadlineExceeded("the deadline passed while the request waited")
                )
                continue
            if not any(space.open for space in spaces):
                return
            if not self._requests.callers.may_run(request):
                request.trace.waits_for("caller_limit")  # It keeps no place free: others may overtake it.
                continue
            self._place(request, [space for space in spaces if _fits(request, space.place)], now_s)

    def wanted(self, place: Place) -> bool:
        """Whether a request waits that could run at ``place``."""
        may_run = self._requests.callers.may_run
        return any(may_run(request) and _fits(request, place) for request in self._requests.waiting)

    def leave(self, place: Place, now_s: float) -> None:
        """A place was lost: its requests go to others; who finds none rests there until it returns."""
        others = [other for other in self._places if other is not place and other.ready]
        for request in place.batch.running:
            if any(_fits(request, other) for other in others):
                self._lifecycle.leave_worker(request, now_s)
            else:
                self._lifecycle.rest(request, now_s, "worker_lost")
        self.admit(now_s)

    def renewed(self, place: Place, now_s: float) -> None:
        """A place has a new connection, perhaps to something else: who cannot go on there leaves or fails."""
        target = place.target
        assert target is not None
        for request in place.batch.running:
            if not misfit(request, target):
                request.target = target
            elif any(_fits(request, other) for other in self._places):
                self._lifecycle.leave_worker(request, now_s)
        self.fail_misfits(target)

    def fail_misfits(self, target: Target) -> None:
        """Fails the requests that no place can compute, as far as is known.

        Args:
            target: What is served now, for the message.
        """
        for request in list(self._requests):
            if (problem := misfit(request, target)) and not any(_fits(request, p) for p in self._places):
                self._lifecycle.fail(request, NotReady(problem, retry_after_s=RETRY_AFTER_S))

    def lost_since_s(self) -> float:
        """Monotonic time of the latest loss of a place that is still lost."""
        return max((place.since_s for place in self._places if not place.ready), default=time.monotonic())

    def give_up_waiting(self, problem: str) -> None:
        """Nobody but a client's own deadline bounds the wait for a lost worker; without one, this does."""
        ready = [place for place in self._places if place.ready]
        for request in list(self._requests):
            if request.deadline_s is None and not any(_fits(request, place) for place in ready):
                self._lifecycle.fail(request, NotReady(problem, retry_after_s=RETRY_AFTER_S))

    def _place(self, request: Request, fitting: Sequence[Space], now_s: float) -> None:
        """Starts a request in the emptiest space with room; without one, nobody may overtake it there."""
        enough = [
            space
            for space in fitting
            if space.open
            and (
                not (count := space.place.batch.running_count)
                or (count < self._max_running and space.place.pages_to_start(request) <= space.free_pages)
            )
        ]
        if enough:
            space = min(enough, key=lambda space: space.load(self._max_running))
            space.free_pages -= space.place.pages_to_start(request)
            space.place.take(request, now_s)
            return
        slots = any(space.place.batch.running_count < self._max_running for space in fitting)
        request.trace.waits_for("kv_blocks" if slots else "slots" if fitting else "worker_lost")
        for space in fitting:
            space.open = False


def _fits(request: Request, place: Place) -> bool:
    target = place.target
    return target is not None and not misfit(request, target)
