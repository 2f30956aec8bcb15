"""All living requests of the scheduler, and who of them runs where."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from scheduler_service.admission import WaitingQueue
from scheduler_service.callers import Callers
from scheduler_service.request import Request
from scheduler_service.roster import Roster
from spearhead.errors import RequestExists


class Host(Protocol):
    """Where a request runs."""

    def enter(self, request: Request) -> None:
        """The request runs there from now on."""

    def leave(self, request: Request) -> None:
        """It does not any more; what the workers hold of it is to be freed."""


class Requests:
    """Every living request, in exactly one place: the queue, or one host.

    Args:
        on_room: Called when a request may run that had to wait for another one of its caller.

    Attributes:
        waiting: Those that wait.
        callers: Who has how many of them.
        roster: Their numbers, as columns.
    """

    def __init__(self, on_room: Callable[[], None] = lambda: None) -> None:
        self.waiting = WaitingQueue()
        self.callers = Callers(on_room)
        self.roster = Roster()
        self._by_id: dict[str, Request] = {}
        self._hosts: dict[int, Host] = {}  # By sequence id.

    def __iter__(self) -> Iterator[Request]:
        return iter(self._by_id.values())

    @property
    def running_count(self) -> int:
        """How many run, anywhere."""
        return len(self._hosts)

    def get(self, request_id: str) -> Request | None:
        """The living request of that id."""
        return self._by_id.get(request_id)

    def runs(self, request: Request) -> bool:
        """Whether the request runs."""
        return request.sequence_id in self._hosts

    def add(self, request: Request, aging_s: float) -> int:
        """Lets a new request wait; returns how many are before it.

        Raises:
            RequestExists: Its id is taken.
        """
        if request.request_id in self._by_id:
            raise RequestExists(
                f"request {request.request_id!r} is running; use another request_id, or leave it empty"
            )
        self._by_id[request.request_id] = request
        self.roster.enter(request)
        self.callers.waits(request)
        return self.waiting.push(request, aging_s)

    def start(self, request: Request, host: Host) -> None:
        """Moves a waiting request to a host."""
        waited = self.waiting.discard(request)
        assert waited
        self.callers.runs(request)
        self._hosts[request.sequence_id] = host
        host.enter(request)

    def commit(self, request: Request, token_ids: Sequence[int], now_s: float) -> None:
        """Tokens of a running request became output, at this monotonic time."""
        self.roster.commit(request, token_ids, now_s)

    def refuse_drafts(self, request: Request) -> None:
        """The target could not compute a step with drafts of this request; it gets no more."""
        self.roster.refuse_drafts(request)

    def put_back(self, request: Request, aging_s: float) -> int:
        """Moves a running request back to the queue, where it keeps its age, and frees its pages.

        Returns:
            How many wait before it.
        """
        self._hosts.pop(request.sequence_id).leave(request)
        self.callers.put_back(request)
        request.verify.restart()
        request.draft.restart()
        return self.waiting.push(request, aging_s)

    def remove(self, request: Request) -> None:
        """Takes a request out and frees its pages."""
        del self._by_id[request.request_id]
        request.ended = True
        host = self._hosts.pop(request.sequence_id, None)
        if host is None:
            self.waiting.discard(request)
        else:
            host.leave(request)
        self.callers.ended(request, ran=host is not None)
        self.roster.leave(request)

    def check_integrity(self, running: Iterable[Request]) -> None:
        """Checks that every living request is in exactly one place.

        Args:
            running: What all hosts say that they run.
        """
        waits = {request.request_id for request in self.waiting}
        runs = [request.request_id for request in running]
        assert not waits.intersection(runs), f"both waiting and running: {waits.intersection(runs)}"
        assert len(runs) == len(set(runs)) == len(self._hosts), "a request runs in two places"
        assert waits.union(runs) == self._by_id.keys(), "a request is neither waiting nor running"
        self.roster.check_integrity(list(self._by_id.values()))
        self.callers.check_integrity(
            waiting=list(self.waiting), running=[r for r in self._by_id.values() if self.runs(r)]
        )
        assert self.waiting.token_count == sum(request.prompt_length for request in self.waiting)
