"""Keeps one worker connected: handshake, stream, loss, backoff, and again."""

import asyncio
import enum
import logging
import random
import time
from collections.abc import Callable
from typing import Generic, Protocol

from scheduler_service.peers import Connection, InfoT
from scheduler_service.worker_stream import Exchange, ReplyT, RequestT, WorkerStream
from spearhead.errors import DeadlineExceeded, ModelMismatch, NotReady, SpearheadError, StartupError

_logger = logging.getLogger("spearhead.scheduler")


class LinkState(enum.Enum):
    """Where a link stands."""

    CONNECTING = "connecting"
    READY = "ready"
    LOST = "lost"
    REFUSED = "refused"


class Peer(Protocol[InfoT]):
    """How to reach one kind of worker."""

    @property
    def name(self) -> str:
        """The worker, for messages: its kind and address."""

    @property
    def address(self) -> str:
        """Where it is; of several alike, the one that was tried last."""

    async def connect(self, timeout_s: float) -> Connection[InfoT]:
        """Shakes hands and opens the stream."""


class WorkerLink(Generic[InfoT, RequestT, ReplyT]):
    """The connection to one worker, for as long as the scheduler lives.

    Args:
        peer: How to reach it.
        connect_timeout_s: For one handshake.
        backoff_s: Shortest and longest pause between attempts.
        on_change: Called when the state changes.
        on_stale: Called for a reply that came too late.
        probe: Makes a message that a new connection must answer before it is ready: a worker may accept
            connections and hang all the same. ``None`` = the handshake is enough.
        hang_backoff_s: Shortest and longest pause after a worker was left because it did not answer; it
            doubles until :meth:`settle`.

    Attributes:
        state: Where the link stands.
        detail: Why it is lost or refused; empty when ready.
        since_s: Monotonic time of the last change of state.
        session: Number of the connection; sequences belong to one connection.
        info: What the worker said in the last handshake; ``None`` before the first.
    """

    def __init__(
        self,
        peer: Peer[InfoT],
        *,
        connect_timeout_s: float,
        backoff_s: tuple[float, float],
        on_change: Callable[[], None],
        on_stale: Callable[[], None],
        probe: Callable[[], RequestT] | None = None,
        hang_backoff_s: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        self._peer = peer
        self._connect_timeout_s = connect_timeout_s
        self._backoff_s = backoff_s
        self._on_change = on_change
        self._on_stale = on_stale
        self._probe = probe
        self._hang_backoff_s = hang_backoff_s
        self._hang_count = 0
        self._stream: WorkerStream[RequestT, ReplyT] | None = None
        self.state = LinkState.CONNECTING
        self.detail = ""
        self.since_s = time.monotonic()
        self.session = 0
        self.info: InfoT | None = None

    @property
    def name(self) -> str:
        """The worker, for messages."""
        return self._peer.name

    @property
    def address(self) -> str:
        """Where the worker is."""
        return self._peer.address

    @property
    def ready(self) -> bool:
        """Whether messages can be exchanged."""
        return self.state is LinkState.READY

    @property
    def status(self) -> str:
        """The state in words: ``ready``, ``lost: …`` or ``refused: …``."""
        if self.state is LinkState.READY:
            return "ready"
        state = "refused" if self.state is LinkState.REFUSED else "lost"
        return f"{state}: {self.detail or 'not connected yet'}"

    async def exchange(self, message: RequestT, timeout_s: float) -> Exchange[ReplyT]:
        """Sends one message and waits for its reply.

        Raises:
            DeadlineExceeded: No reply in time; the connection stays.
            NotReady: The worker is away, or was lost meanwhile.
        """
        stream = self._stream
        if stream is None:
            raise NotReady(f"{self.name} is {self.status}")
        try:
            return await stream.exchange(message, timeout_s)
        except NotReady:
            self._lose(stream, stream.broken)
            raise

    def settle(self) -> None:
        """The worker does its work: the next time that it hangs is the first again."""
        self._hang_count = 0

    async def drop(self, reason: str) -> None:
        """Gives up a connection that does not answer; a new one is made after the pause for that."""
        stream = self._stream
        if stream is not None:
            self._hang_count += 1
            self._lose(stream, reason)
            await stream.close()

    async def run(self) -> None:
        """Connects, and connects again, until cancelled."""
        shortest, longest = self._backoff_s
        pause = shortest
        while True:
            try:
                connection = await self._peer.connect(self._connect_timeout_s)
            except (ModelMismatch, StartupError) as error:
                self._set(LinkState.REFUSED, error.message)
            except SpearheadError as error:
                self._set(LinkState.LOST, error.message)
            else:
                pause = shortest
                await self._serve(connection)
            await asyncio.sleep(max(pause * random.uniform(0.5, 1.0), self._hang_pause_s()))
            pause = min(2 * pause, longest)

    async def _serve(self, connection: Connection[InfoT]) -> None:
        stream = WorkerStream[RequestT, ReplyT](self.name, connection.call, on_stale=self._on_stale)
        try:
            if self._probe is not None:
                await stream.exchange(self._probe(), self._connect_timeout_s)
            self.info = connection.info
            self.session += 1
            self._stream = stream
            self._set(LinkState.READY, "")
            self._lose(stream, await stream.wait_broken())
        except SpearheadError as error:
            self._hang_count += isinstance(error, DeadlineExceeded)
            self._set(LinkState.LOST, error.message)
        finally:
            await stream.close()
            await connection.channel.close()

    def _hang_pause_s(self) -> float:
        shortest, longest = self._hang_backoff_s
        doublings = min(self._hang_count, 32) - 1  # Beyond that, a float overflows in the end.
        return min(shortest * 2.0**doublings, longest) if self._hang_count else 0.0

    def _lose(self, stream: WorkerStream[RequestT, ReplyT], reason: str) -> None:
        if self._stream is stream:
            self._stream = None
            self._set(LinkState.LOST, reason)

    def _set(self, state: LinkState, detail: str) -> None:
        if (state, detail) == (self.state, self.detail):
            return
        if state is not self.state:
            self.since_s = time.monotonic()
        level = logging.INFO if state is LinkState.READY else logging.WARNING
        _logger.log(level, "%s is %s%s", self.name, state.value, f": {detail}" if detail else "")
        self.state, self.detail = state, detail
        self._on_change()
