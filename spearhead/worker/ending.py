"""The end of a process that no signal asked for: a part of it that it cannot do without is gone, or done."""

import asyncio
import threading

from spearhead.errors import SpearheadError


class Ending:
    """Reached once, from any thread; whoever waits for it in an event loop wakes up."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reached = False
        self._error: SpearheadError | None = None
        self._waiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()

    def reach(self, error: SpearheadError | None) -> None:
        """Ends the process; the first call counts.

        Args:
            error: Why; ``None`` = its work is done.
        """
        with self._lock:
            if self._reached:
                return
            self._reached, self._error = True, error
            waiting = list(self._waiting)
        for loop, event in waiting:
            loop.call_soon_threadsafe(event.set)

    async def wait(self) -> SpearheadError | None:
        """Waits for the end; what :meth:`reach` was given."""
        entry = asyncio.get_running_loop(), asyncio.Event()
        with self._lock:
            if self._reached:
                return self._error
            self._waiting.add(entry)
        try:
            await entry[1].wait()
        finally:
            with self._lock:
                self._waiting.discard(entry)
        return self._error
