"""One thread runs the model; the event loop only waits for it."""

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from spearhead.worker.device_time import DeviceTimer
from spearhead.worker.ending import Ending

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed(Generic[Result]):
    """A result and when it was computed, by ``time.perf_counter_ns``; ``device`` as the timer measured it."""

    result: Result
    started_ns: int
    ended_ns: int
    device: Mapping[str, int] = field(default_factory=dict)


class ModelThread:
    """Runs functions one after another, in the order they were given.

    Args:
        name: Of the thread, as debuggers show it.
        ending: Whoever waits for work when it is reached is told why; the work may never end.
    """

    def __init__(self, name: str, ending: Ending | None = None) -> None:
        self._ending = ending
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._lock = threading.Lock()
        self._pending = 0
        self._timer: DeviceTimer | None = None
        self._last_progress_s = time.monotonic()

    @property
    def busy(self) -> bool:
        """Whether work is running or waiting."""
        return self._pending > 0

    @property
    def last_progress_s(self) -> float:
        """``time.monotonic`` when work was last given to an idle thread, or ended."""
        return self._last_progress_s

    def beat(self) -> None:
        """Long work reports that it gets on."""
        self._last_progress_s = time.monotonic()

    def measure_with(self, timer: DeviceTimer) -> None:
        """From now on work is timed on the device too."""
        self._timer = timer

    async def run(self, function: Callable[[], Result]) -> Timed[Result]:
        """Runs ``function`` in the thread; a caller that is cancelled leaves it unrun, or running.

        Raises:
            SpearheadError: The ending was reached first, with an error.
        """
        work = asyncio.wrap_future(self.submit(function))
        if self._ending is not None and not work.done():
            await _first(work, self._ending)
        return await work

    def submit(self, function: Callable[[], Result]) -> Future[Timed[Result]]:
        """Queues ``function`` without waiting."""
        with self._lock:
            if not self._pending:
                self.beat()
            self._pending += 1
        future = self._executor.submit(_timed, function, self._timer)
        future.add_done_callback(self._ended)  # called for cancelled work too
        return future

    def close(self, *, wait: bool = True) -> None:
        """Drops what has not begun and ends the thread.

        Args:
            wait: For the work that runs.
        """
        self._executor.shutdown(wait=wait, cancel_futures=True)

    def _ended(self, future: "Future[Timed[Any]]") -> None:
        with self._lock:
            self._pending -= 1
            self.beat()


async def _first(work: "asyncio.Future[Any]", ending: Ending) -> None:
    """Returns when the work has ended; raises the ending's error if that comes first."""
    ended = asyncio.ensure_future(ending.wait())
    try:
        await asyncio.wait({work, ended}, return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        work.cancel()
        raise
    finally:
        ended.cancel()
    if work.done():
        return
    error = ended.result()
    if error is not None:
        work.cancel()
        raise error


def _timed(function: Callable[[], Result], timer: DeviceTimer | None) -> Timed[Result]:
    started = time.perf_counter_ns()
    if timer is None:
        return Timed(result=function(), started_ns=started, ended_ns=time.perf_counter_ns())
    timer.start()
    result = function()
    device = timer.stop()
    return Timed(result=result, started_ns=started, ended_ns=time.perf_counter_ns(), device=device)
