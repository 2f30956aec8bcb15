"""One thread runs the model; the event loop only waits for it."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed(Generic[Result]):
    """A result and when it was computed, by ``time.perf_counter_ns``."""

    result: Result
    started_ns: int
    ended_ns: int


class ModelThread:
    """Runs functions one after another, in the order they were given.

    Args:
        name: Of the thread, as debuggers show it.
    """

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._pending = 0
        self._last_progress_s = time.monotonic()

    @property
    def busy(self) -> bool:
        """Whether work is running or waiting."""
        return self._pending > 0

    @property
    def last_progress_s(self) -> float:
        """``time.monotonic`` when work was last given to an idle thread, or ended."""
        return self._last_progress_s

    async def run(self, function: Callable[[], Result]) -> Timed[Result]:
        """Runs ``function`` in the thread; cancelling the caller does not interrupt it."""
        return await asyncio.wrap_future(self.submit(function))

    def submit(self, function: Callable[[], Result]) -> Future[Timed[Result]]:
        """Queues ``function`` without waiting; call it from the event loop only."""
        if not self._pending:
            self._last_progress_s = time.monotonic()
        self._pending += 1
        return self._executor.submit(self._timed, function)

    def close(self) -> None:
        """Waits for the work that is queued, then ends the thread."""
        self._executor.shutdown(wait=True)

    def _timed(self, function: Callable[[], Result]) -> Timed[Result]:
        started = time.perf_counter_ns()
        try:
            return Timed(result=function(), started_ns=started, ended_ns=time.perf_counter_ns())
        finally:
            self._pending -= 1
            self._last_progress_s = time.monotonic()
