"""All requests of the scheduler: which wait, which run, and which pages are to be freed."""

from array import array
from collections.abc import Iterator, Sequence

from scheduler_service.admission import WaitingQueue
from scheduler_service.request import Request, WorkerSequence
from scheduler_service.roster import DecodingColumns, Roster
from spearhead.errors import RequestExists


class ReleaseList:
    """Sequences that one worker still holds and nobody needs any more."""

    def __init__(self) -> None:
        self._entries: list[tuple[int, int]] = []  # (session, sequence id)

    def add(self, sequence: WorkerSequence, sequence_id: int) -> None:
        """Notes what the worker holds of a sequence; the state then counts as never sent."""
        if sequence.held:
            self._entries.append((sequence.session, sequence_id))
        sequence.held = False

    def pending(self, session: int) -> bool:
        """Whether connection ``session`` is to be told something. Older connections freed theirs."""
        self._entries = [entry for entry in self._entries if entry[0] == session]
        return bool(self._entries)

    def take(self, session: int) -> list[int]:
        """The sequence ids for the next message on ``session``; the list is empty then."""
        taken = [sequence_id for held_by, sequence_id in self._entries if held_by == session]
        self._entries = []
        return taken


class Batch:
    """Every living request, in exactly one of two places."""

    def __init__(self) -> None:
        self.waiting = WaitingQueue()
        self.verify_releases = ReleaseList()
        self.draft_releases = ReleaseList()
        self._running: dict[int, Request] = {}
        self._rows = array("q")  # Of the running requests, in the same order.
        self._roster = Roster()
        self._by_id: dict[str, Request] = {}

    def __iter__(self) -> Iterator[Request]:
        return iter(self._by_id.values())

    def __contains__(self, request: Request) -> bool:
        return self._by_id.get(request.request_id) is request

    @property
    def running(self) -> tuple[Request, ...]:
        """Running requests in order of admission."""
        return tuple(self._running.values())

    def split(self) -> tuple[DecodingColumns, list[Request]]:
        """The running requests as they are now: those that decode, and those with more to compute."""
        columns, others = self._roster.decoding(self._rows)
        if not others:
            return columns, []
        running = self.running
        return columns, [running[i] for i in others]

    @property
    def running_count(self) -> int:
        """How many run."""
        return len(self._running)

    def runs(self, request: Request) -> bool:
        """Whether the request is in the running batch."""
        return request.sequence_id in self._running

    def running_by_id(self, sequence_id: int) -> Request:
        """The running request that the workers know by that name."""
        return self._running[sequence_id]

    def get(self, request_id: str) -> Request | None:
        """The living request of that id."""
        return self._by_id.get(request_id)

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
        self._roster.enter(request)
        return self.waiting.push(request, aging_s)

    def start(self, request: Request) -> None:
        """Moves a waiting request into the running batch."""
        waited = self.waiting.discard(request)
        assert waited
        self._running[request.sequence_id] = request
        self._rows.append(request.row)

    def commit(self, request: Request, token_ids: Sequence[int], now_s: float) -> None:
        """Tokens of a running request became output, at this monotonic time."""
        self._roster.commit(request, token_ids, now_s)

    def refuse_drafts(self, request: Request) -> None:
        """The target could not compute a step with drafts of this request; it gets no more."""
        self._roster.refuse_drafts(request)

    def preempt(self, request: Request, aging_s: float) -> int:
        """Moves a running request back to the queue, where it keeps its age, and frees its pages.

        Returns:
            How many wait before it.
        """
        del self._running[request.sequence_id]
        self._rows.remove(request.row)
        self._release(request)
        request.verify.restart()
        request.draft.restart()
        return self.waiting.push(request, aging_s)

    def remove(self, request: Request) -> None:
        """Takes a request out and frees its pages."""
        del self._by_id[request.request_id]
        request.ended = True
        if self._running.pop(request.sequence_id, None) is None:
            self.waiting.discard(request)
        else:
            self._rows.remove(request.row)
        self._release(request)
        self._roster.leave(request)

    def preemption_victim(self) -> Request | None:
        """Whom to preempt: of the lowest priority the newest. Never the only one, so that one advances."""
        if len(self._running) < 2:
            return None
        return max(
            self._running.values(),
            key=lambda request: (-request.spec.priority, request.accounting.arrival_s, request.sequence_id),
        )

    def check_integrity(self) -> None:
        """Checks that every living request is in exactly one place."""
        waiting = {request.request_id for request in self.waiting}
        running = {request.request_id for request in self._running.values()}
        assert not waiting & running, f"both waiting and running: {waiting & running}"
        assert waiting | running == self._by_id.keys(), "a request is neither waiting nor running"
        assert self._rows.tolist() == [request.row for request in self._running.values()]
        self._roster.check_integrity(list(self._by_id.values()))
        assert self.waiting.token_count == sum(request.prompt_length for request in self.waiting)

    def _release(self, request: Request) -> None:
        self.verify_releases.add(request.verify, request.sequence_id)
        self.draft_releases.add(request.draft, request.sequence_id)
