"""The requests that run on one verify worker, and which of its pages are to be freed."""

from array import array

from scheduler_service.acceptance import AcceptanceTracker
from scheduler_service.request import Request, WorkerSequence
from scheduler_service.roster import DecodingColumns, Roster


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
    """The running requests of one worker. Only :class:`scheduler_service.requests.Requests` moves them.

    Args:
        roster: Where their numbers are.
        acceptance: What is known about their drafts; forgotten when they leave.
        worker: Name of the worker, for traces.

    Attributes:
        acceptance: As above.
        worker: As above.
        verify_releases: What the verify worker may forget.
        draft_releases: What its drafter may forget.
    """

    def __init__(self, roster: Roster, acceptance: AcceptanceTracker, worker: str = "") -> None:
        self.acceptance = acceptance
        self.worker = worker
        self.verify_releases = ReleaseList()
        self.draft_releases = ReleaseList()
        self._roster = roster
        self._running: dict[int, Request] = {}
        self._rows = array("q")  # Of the running requests, in the same order.

    @property
    def running(self) -> tuple[Request, ...]:
        """Running requests in order of admission."""
        return tuple(self._running.values())

    @property
    def running_count(self) -> int:
        """How many run."""
        return len(self._running)

    def split(self) -> tuple[DecodingColumns, list[Request]]:
        """The running requests as they are now: those that decode, and those with more to compute."""
        columns, others = self._roster.decoding(self._rows)
        if not others:
            return columns, []
        running = self.running
        return columns, [running[i] for i in others]

    def running_by_id(self, sequence_id: int) -> Request:
        """The running request that the workers know by that name."""
        return self._running[sequence_id]

    def enter(self, request: Request) -> None:
        """A request runs here from now on."""
        self._running[request.sequence_id] = request
        self._rows.append(request.row)

    def leave(self, request: Request) -> None:
        """It does not any more; what the workers hold of it is to be freed."""
        del self._running[request.sequence_id]
        self._rows.remove(request.row)
        self.acceptance.release(request.row)
        self.verify_releases.add(request.verify, request.sequence_id)
        self.draft_releases.add(request.draft, request.sequence_id)

    def preemption_victim(self) -> Request | None:
        """Whom to preempt: of the lowest priority the newest. Never the only one, so that one advances."""
        if len(self._running) < 2:
            return None
        return max(
            self._running.values(),
            key=lambda request: (-request.spec.priority, request.accounting.arrival_s, request.sequence_id),
        )

    def check_integrity(self) -> None:
        """Checks that rows and requests belong together, and that nothing is kept of others."""
        rows = [request.row for request in self._running.values()]
        assert self._rows.tolist() == rows
        self.acceptance.check_integrity(set(rows))
