"""Where followers come in: a port that anybody may reach, and few are let through."""

import hmac
import logging
import secrets
import select
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from spearhead.model.parallel.frames import FrameSocket, Kind
from spearhead.model.parallel.place import LOOPBACK

_LONGEST_BYTES = 256
"""Of a frame from a follower: who it is, or that it lives."""

_MOST_WAITING = 64
"""Connections that have not said who they are; beyond, the oldest has to go."""

_log = logging.getLogger("spearhead.model")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Guest:
    """A connection that has not said who it is; nothing but bytes and numbers is read from it."""

    frames: FrameSocket
    peer: str
    since: float = field(default_factory=time.monotonic)


class Entrance:
    """Owns the port and the connections that have not said who they are, none of which is waited for.

    Args:
        address: Where ranks meet; on this machine alone if it is the loopback.
        size: Number of ranks.
        timeout_s: Seconds that a connection has to say who it is.

    Attributes:
        port: Where followers connect.
        secret: What they have to say.
    """

    def __init__(self, address: str, size: int, timeout_s: float) -> None:
        self._size, self._timeout_s = size, timeout_s
        self._listening = _listen_at(address)
        self._listening.setblocking(False)
        self._guests: dict[int, _Guest] = {}
        self._present: set[int] = set()
        self.port: int = self._listening.getsockname()[1]
        self.secret = secrets.token_hex()

    def admit(self, pause_s: float) -> Iterator[tuple[int, FrameSocket]]:
        """The ranks that come within one wait, each once; whoever is none is sent away.

        Args:
            pause_s: Longest wait.
        """
        poll = select.poll()
        poll.register(self._listening, select.POLLIN)
        for number in self._guests:
            poll.register(number, select.POLLIN)
        for number, _ in poll.poll(pause_s * 1000):
            if number == self._listening.fileno():
                self._welcome()
            else:
                yield from self._hear(self._guests.pop(number))
        for number, guest in list(self._guests.items()):
            if time.monotonic() - guest.since > self._timeout_s or len(self._guests) > _MOST_WAITING:
                _refuse(self._guests.pop(number), "it does not say who it is")

    def close(self) -> None:
        """Lets nobody in any more."""
        self._listening.close()
        for guest in self._guests.values():
            guest.frames.close()
        self._guests.clear()

    def _welcome(self) -> None:
        try:
            connection, peer = self._listening.accept()
        except (BlockingIOError, ConnectionError):  # it has gone already
            return
        frames = FrameSocket(connection, self._timeout_s, longest_bytes=_LONGEST_BYTES)
        self._guests[frames.fileno()] = _Guest(frames=frames, peer=f"{peer[0]}:{peer[1]}")

    def _hear(self, guest: _Guest) -> Iterator[tuple[int, FrameSocket]]:
        try:
            hello = next(guest.frames.read(), None)
            if hello is None:  # a part of it
                self._guests[guest.frames.fileno()] = guest
                return
            rank = self._rank_of(*hello)
        except (OSError, ValueError) as error:
            _refuse(guest, str(error))
            return
        yield rank, guest.frames

    def _rank_of(self, kind: Kind, payload: bytes) -> int:
        if kind is not Kind.HELLO:
            raise ValueError("it did not say who it is")
        secret, _, rank = payload.partition(b" ")
        if not hmac.compare_digest(secret, self.secret.encode()):
            raise ValueError("it does not know the secret")
        if not rank.isdigit() or int(rank) not in set(range(1, self._size)) - self._present:
            raise ValueError(f"rank {rank.decode(errors='replace')} of {self._size} is not awaited")
        self._present.add(int(rank))
        return int(rank)


def _refuse(guest: _Guest, why: str) -> None:
    _log.warning("%s is no rank of this model: %s", guest.peer, why)
    guest.frames.close()


def _listen_at(address: str) -> socket.socket:
    if address == LOOPBACK:
        return socket.create_server((LOOPBACK, 0))
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", 0))
