"""The side of every other rank: work comes in, and signs of life go out."""

import contextlib
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator

from spearhead.errors import RankFailure
from spearhead.model.parallel.frames import FrameSocket, Kind
from spearhead.model.parallel.leader import BEATS

_LONGEST_BYTES = 1 << 28
"""Of the leader's work; a step of a thousand sequences of 128 Ki tokens is a tenth of it."""

_IDLE_S = 1.0
"""A rank without work says so often that nobody takes it for stuck, however patient it is with the leader."""


class Follower:
    """Owns the connection to the leader; a thread reads it, so that the leader's end is seen at any time.

    Args:
        address: Of the leader.
        port: Where it awaits followers.
        secret: What it wants to hear.
        rank: This one.
        lost_after_s: A leader that is silent for so many seconds is lost.
        on_end: Called once, from the reading thread, when the leader is lost, or stops: ``None``.

    Raises:
        RankFailure: The leader cannot be reached.
    """

    def __init__(
        self,
        address: str,
        port: int,
        secret: str,
        rank: int,
        *,
        lost_after_s: float,
        on_end: Callable[[RankFailure | None], None],
    ) -> None:
        self._lost_after_s = lost_after_s
        self._on_end = on_end
        self._work: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        try:
            connection = socket.create_connection((address, port), lost_after_s)
            self._leader = FrameSocket(connection, lost_after_s, longest_bytes=_LONGEST_BYTES)
            self._leader.send(Kind.HELLO, f"{secret} {rank}".encode())
        except OSError as error:
            raise RankFailure(f"rank {rank} cannot reach the leader at {address}:{port}: {error}") from error
        threading.Thread(target=self._read, name="leader", daemon=True).start()

    def work(self, on_progress: Callable[[], None]) -> Iterator[bytes]:
        """The leader's work, one piece after the other, until it stops.

        Args:
            on_progress: Called for each piece, and now and then while there is none.
        """
        while True:
            try:
                piece = self._work.get(timeout=min(_IDLE_S, self._lost_after_s))
            except queue.Empty:
                on_progress()
                continue
            on_progress()
            if piece is None:
                return
            yield piece

    def _read(self) -> None:
        failure: RankFailure | None = None
        try:
            self._read_until_stop()
        except (OSError, ValueError) as error:  # ValueError: what came is no frame
            failure = RankFailure(f"rank 0, which leads, is lost: {error}; this rank ends")
        self._leader.close()
        self._on_end(failure)

    def _read_until_stop(self) -> None:
        pause_s, seen = self._lost_after_s / BEATS, time.monotonic()
        beaten = 0.0
        while True:
            if self._leader.readable(pause_s):
                for kind, payload in self._leader.read():
                    if kind is Kind.STOP:
                        self._work.put(None)
                        return
                    if kind is Kind.WORK:
                        self._work.put(payload)
                seen = time.monotonic()
            silent_s = time.monotonic() - seen
            if silent_s > self._lost_after_s:
                raise TimeoutError(f"it has been silent for {silent_s:.1f} s")
            if time.monotonic() - beaten > pause_s and self._leader.writable():
                with contextlib.suppress(OSError):  # the leader is gone; its last words may be here still
                    self._leader.send(Kind.BEAT)
                beaten = time.monotonic()
