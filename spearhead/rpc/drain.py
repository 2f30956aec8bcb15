"""The end of a service: no new calls, the running ones finish, then the process may go."""

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from spearhead.errors import NotReady
from spearhead.rpc.calls import Call, Proceed
from spearhead.rpc.conventions import UNTRACED_SERVICES

RETRY_AFTER_S = 1.0

_logger = logging.getLogger("spearhead.rpc")


class RunningCalls:
    """Counts running calls and refuses new ones while draining. Probes and tools neither count nor wait."""

    def __init__(self, drain_methods: frozenset[str] = frozenset()) -> None:
        """Starts with no call running.

        Args:
            drain_methods: ``package.Service/Method`` of calls that are taken while draining too.
        """
        self._drain_methods = drain_methods
        self._count = 0
        self._draining = False
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def count(self) -> int:
        """Calls that run now."""
        return self._count

    def refuse_new(self) -> None:
        """From now on new calls are refused with :class:`NotReady`."""
        self._draining = True

    async def wait_idle(self, timeout_s: float) -> bool:
        """Waits until no call runs; ``False`` when some still do after ``timeout_s`` seconds."""
        if not self._count:
            return True
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        except TimeoutError:
            return False
        return True

    async def __call__(self, call: Call, proceed: Proceed) -> Any:
        """Runs the call as a layer of a server."""
        if call.service in UNTRACED_SERVICES:
            return await proceed()
        if self._draining and call.method not in self._drain_methods:
            raise NotReady(
                "this server is shutting down and takes no new calls; retry, another one may have taken over",
                retry_after_s=RETRY_AFTER_S,
            )
        self._count += 1
        self._idle.clear()
        try:
            return await proceed()
        finally:
            self._count -= 1
            if not self._count:
                self._idle.set()


class Drainable(Protocol):
    """What :func:`run_until_signal` ends."""

    @property
    def drain_s(self) -> float:
        """Seconds that running calls get."""

    async def drain(self, grace_s: float) -> None:
        """Ends within ``grace_s`` seconds, and at once when called again with 0."""


async def run_until_signal(server: Drainable, *, on_drain: Callable[[], Awaitable[None]]) -> None:
    """Serves until SIGTERM or SIGINT, then drains; returns when everything has ended.

    A second signal stops at once: running calls are cancelled.

    Args:
        server: A started server.
        on_drain: Called when the drain begins, while running calls finish. It should end streams that
            otherwise live as long as the peer.
    """
    loop = asyncio.get_running_loop()
    signals: asyncio.Queue[signal.Signals] = asyncio.Queue()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signals.put_nowait, number)
    try:
        first = await signals.get()
        _logger.info("%s: draining for at most %g s", first.name, server.drain_s)
        ending = asyncio.ensure_future(_drain(server, on_drain))
        second = asyncio.ensure_future(signals.get())
        await asyncio.wait({ending, second}, return_when=asyncio.FIRST_COMPLETED)
        if not ending.done():
            _logger.warning("%s again: stopping at once", second.result().name)
            await server.drain(0.0)
            ending.cancel()
        second.cancel()
        await asyncio.wait({ending, second})
        if not ending.cancelled():
            ending.result()
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


async def _drain(server: Drainable, on_drain: Callable[[], Awaitable[None]]) -> None:
    async def hook() -> None:
        try:
            async with asyncio.timeout(server.drain_s):
                await on_drain()
        except Exception:  # the drain goes on; the process ends anyway
            _logger.exception("the service's own part of the drain failed")

    await asyncio.gather(server.drain(server.drain_s), hook())
