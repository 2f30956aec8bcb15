"""Rank 0's side of the connections to the other ranks: work goes out, and signs of life come in."""

import logging
import select
import socket
import threading
import time
from collections.abc import Callable

from spearhead.errors import RankFailure
from spearhead.model.parallel.entrance import Entrance
from spearhead.model.parallel.frames import FrameSocket, Kind

BEATS = 5
"""Signs of life within the time after which a rank is lost."""

_log = logging.getLogger("spearhead.model")


class Leader:
    """Owns the connections to all followers; a thread watches them from :meth:`accept` on.

    Args:
        address: Where ranks meet; on this machine alone if it is the loopback.
        size: Number of ranks.
        lost_after_s: A follower that is silent for so many seconds is lost.
        on_loss: Called once, from any thread, when a rank is lost.

    Attributes:
        port: Where followers connect.
        secret: What they have to say.
    """

    def __init__(
        self, address: str, size: int, *, lost_after_s: float, on_loss: Callable[[RankFailure], None]
    ) -> None:
        self._size = size
        self._lost_after_s = lost_after_s
        self._on_loss = on_loss
        self._entrance = Entrance(address, size, lost_after_s)
        self.port = self._entrance.port
        self.secret = self._entrance.secret
        self._followers: dict[int, FrameSocket] = {}
        self._seen: dict[int, float] = {}
        self._turn = threading.Lock()
        self._losing = threading.Lock()
        self._failure: RankFailure | None = None
        self._ended = threading.Event()
        self._wake, self._bell = socket.socketpair()
        self._pause_s = lost_after_s / BEATS
        self._watch = threading.Thread(target=self._watch_all, name="ranks", daemon=True)

    def accept(self, timeout_s: float, check: Callable[[], None] = lambda: None) -> None:
        """Waits for all followers.

        Args:
            timeout_s: Longest wait.
            check: Called now and then; raises what makes waiting pointless.

        Raises:
            RankFailure: Not all came.
        """
        deadline = time.monotonic() + timeout_s
        self._watch.start()  # who came early is told that this rank lives, while it awaits the others
        while len(self._followers) < self._size - 1:
            check()
            if self._failure is not None:
                raise self._failure
            left_s = deadline - time.monotonic()
            if left_s < 0:
                missing = sorted(set(range(1, self._size)) - self._followers.keys())
                raise RankFailure(
                    f"ranks {missing} of {self._size} did not come within {timeout_s:g} s "
                    "(parallel.start_timeout_s); look at their logs"
                )
            for rank, follower in self._entrance.admit(min(self._pause_s, left_s)):
                self._seen[rank] = time.monotonic()
                self._followers[rank] = follower
                self._bell.send(b"!")
        self._entrance.close()

    def send(self, work: bytes) -> None:
        """Gives work to every follower.

        Raises:
            RankFailure: A rank is lost.
        """
        if self._failure is not None:
            raise self._failure
        with self._turn:
            for rank, follower in self._followers.items():
                try:
                    follower.send(Kind.WORK, work)
                except OSError as error:
                    raise self.lose(f"rank {rank} of {self._size} takes no work: {error}") from error

    def lose(self, why: str) -> RankFailure:
        """Gives the ranks up; the first reason counts.

        Returns:
            The failure, to be raised.
        """
        with self._losing:
            if self._failure is not None:
                return self._failure
            self._failure = RankFailure(f"{why}; the service ends, so that all ranks start again together")
        self._ended.set()
        self._on_loss(self._failure)
        return self._failure

    def close(self) -> None:
        """Tells every follower that there is no more work."""
        self._ended.set()
        self._entrance.close()
        self._bell.close()
        if self._watch.is_alive():
            self._watch.join(self._lost_after_s)
        self._wake.close()
        with self._turn:
            for follower in self._followers.values():
                try:
                    follower.send(Kind.STOP)
                except OSError as error:
                    _log.warning("a rank could not be told to stop: %s", error)
                follower.close()

    def _watch_all(self) -> None:
        beaten = 0.0
        while self._wait_for_followers():
            for rank, follower in list(self._followers.items()):
                try:
                    self._look_at(rank, follower)
                except (OSError, ValueError) as error:  # ValueError: what came is no frame
                    if not self._ended.is_set():
                        self.lose(f"rank {rank} of {self._size} is gone: {error}")
                    return
            if time.monotonic() - beaten > self._pause_s:
                self._beat()
                beaten = time.monotonic()

    def _wait_for_followers(self) -> bool:
        """Returns when one of them says something or is gone, or after a pause; ``False`` = it is over."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        for follower in list(self._followers.values()):  # others may come meanwhile
            poll.register(follower.fileno(), select.POLLIN)
        found = poll.poll(self._pause_s * 1000)
        if self._ended.is_set():
            return False
        if self._wake.fileno() in dict(found):
            self._wake.recv(self._size)  # a follower has come, and is watched from now on
        return True

    def _look_at(self, rank: int, follower: FrameSocket) -> None:
        while follower.readable(0):
            for _ in follower.read():
                self._seen[rank] = time.monotonic()
        silent_s = time.monotonic() - self._seen[rank]
        if silent_s > self._lost_after_s:
            self.lose(
                f"rank {rank} of {self._size} has been silent for {silent_s:.1f} s "
                f"(parallel.lost_after_s = {self._lost_after_s:g})"
            )

    def _beat(self) -> None:
        if not self._turn.acquire(blocking=False):  # work is being sent, which is a sign of life too
            return
        try:
            for follower in list(self._followers.values()):
                if follower.writable():
                    follower.send(Kind.BEAT)
        except OSError as error:
            if not self._ended.is_set():
                self.lose(f"a rank is gone: {error}")
        finally:
            self._turn.release()
