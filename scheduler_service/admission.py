"""The requests that wait: who may join, and who is next."""

import bisect
from collections.abc import Iterator
from dataclasses import dataclass

from scheduler_service.request import Request
from scheduler_service.spec import GenerationSpec
from spearhead.errors import Overloaded

_SHORTEST_RETRY_S, _LONGEST_RETRY_S = 0.5, 30.0
_RATE_WEIGHT = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLimits:
    """How much may wait.

    Attributes:
        max_requests: Requests, beside those for which a place in the batch is free.
        max_tokens: Prompt tokens.
        max_pages: KV pages that the requests may come to need.
        page_size: Tokens in a page.
    """

    max_requests: int
    max_tokens: int
    max_pages: int
    page_size: int


class WaitingQueue:
    """Waiting requests in order of priority and age; a preempted request keeps its age.

    Age counts for all alike, so the order of two requests never changes while they wait, and none starves:
    a newcomer overtakes only those that arrived within ``aging_s`` times the difference in priority.
    """

    def __init__(self) -> None:
        self._order: list[tuple[float, int, Request]] = []
        self._token_count = 0
        self._length_sum = 0
        self._finish_interval_s: float | None = None
        self._last_finish_s: float | None = None

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[Request]:
        return (request for _, _, request in self._order)

    @property
    def token_count(self) -> int:
        """Prompt tokens that wait."""
        return self._token_count

    def check_room(self, free_places: int, limits: QueueLimits) -> None:
        """Refuses a request before its prompt is known.

        Args:
            free_places: Requests that the batch could take at once.
            limits: How much may wait.

        Raises:
            Overloaded: Too many requests wait.
        """
        if len(self._order) >= limits.max_requests + free_places:
            raise self._overloaded(f"{len(self._order)} requests wait, at most {limits.max_requests} may")

    def check_fits(self, spec: GenerationSpec, free_places: int, limits: QueueLimits) -> None:
        """Refuses a request for which there is no room now. An empty queue takes any request.

        Raises:
            Overloaded: Too many requests, tokens or pages would wait.
        """
        self.check_room(free_places, limits)
        if not self._order:
            return
        tokens = self._token_count + len(spec.prompt_token_ids)
        if tokens > limits.max_tokens:
            raise self._overloaded(f"{tokens} prompt tokens would wait, at most {limits.max_tokens} may")
        pages = -(-(self._length_sum + spec.max_length) // limits.page_size)
        if pages > limits.max_pages:
            raise self._overloaded(
                f"waiting requests would need {pages} KV pages, at most {limits.max_pages} may"
            )

    def push(self, request: Request, aging_s: float) -> int:
        """Lets a request wait; returns how many are before it."""
        key = (request.accounting.arrival_s - request.spec.priority * aging_s, request.sequence_id)
        position = bisect.bisect(self._order, key, key=lambda entry: entry[:2])
        self._order.insert(position, (*key, request))
        self._token_count += request.prompt_length
        self._length_sum += request.spec.max_length
        return position

    def first(self) -> Request:
        """The next one to run."""
        return self._order[0][2]

    def discard(self, request: Request) -> bool:
        """Takes a request out; ``False`` when it did not wait."""
        for index, (_, sequence_id, _) in enumerate(self._order):
            if sequence_id == request.sequence_id:
                del self._order[index]
                self._token_count -= request.prompt_length
                self._length_sum -= request.spec.max_length
                if not self._order:
                    self._last_finish_s = None  # From here on, nobody waits for the next end.
                return True
        return False

    def observe_finish(self, now_s: float) -> None:
        """A running request made place. Only ends while others wait say how long waiting takes."""
        if not self._order:
            return
        if self._last_finish_s is not None:
            interval_s, known_s = now_s - self._last_finish_s, self._finish_interval_s
            self._finish_interval_s = (
                interval_s if known_s is None else known_s + _RATE_WEIGHT * (interval_s - known_s)
            )
        self._last_finish_s = now_s

    def _overloaded(self, problem: str) -> Overloaded:
        # Half the queue's time at the present rate: by then there is room again.
        retry = 0.5 * (self._finish_interval_s or 0.0) * len(self._order)
        retry = min(max(retry, _SHORTEST_RETRY_S), _LONGEST_RETRY_S)
        return Overloaded(f"{problem}; try again in {retry:.1f} s", retry_after_s=retry)
