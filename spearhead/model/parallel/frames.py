"""Messages between the leader and a follower: a kind, a length, and bytes."""

import select
import socket
import struct
from collections.abc import Iterator
from enum import IntEnum

_HEADER = struct.Struct("<BI")
_READ_BYTES = 1 << 16


class Kind(IntEnum):
    """What a frame says."""

    HELLO = 1
    """From a follower: who it is."""

    BEAT = 2
    """The sender lives; both send it all the time."""

    WORK = 3
    """From the leader: compute this."""

    STOP = 4
    """From the leader: no work will come."""


class FrameSocket:
    """Frames over one connection. One thread reads; several may write if they take turns.

    Args:
        connection: Connected; owned from now on.
        timeout_s: Longest wait for room in the peer's window.
        longest_bytes: Of a frame that the peer may send; no more than that is kept of what it sends.
    """

    def __init__(self, connection: socket.socket, timeout_s: float, *, longest_bytes: int) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(timeout_s)
        self._connection = connection
        self._longest_bytes = longest_bytes
        self._received = bytearray()

    def fileno(self) -> int:
        """For ``poll``."""
        return self._connection.fileno()

    def send(self, kind: Kind, payload: bytes = b"") -> None:
        """Sends one frame.

        Raises:
            OSError: The connection is broken, or the peer does not read.
        """
        self._connection.sendall(_HEADER.pack(kind, len(payload)) + payload)

    def writable(self) -> bool:
        """Whether a small frame can be sent without waiting."""
        return self._ready(select.POLLOUT, 0)

    def readable(self, timeout_s: float) -> bool:
        """Waits until there is something to read; whether there is."""
        return self._ready(select.POLLIN, timeout_s)

    def read(self) -> Iterator[tuple[Kind, bytes]]:
        """The frames that are complete after one read, which does not wait if :meth:`readable` said so.

        Raises:
            OSError: The connection is broken, or the peer has closed it.
            ValueError: What came is no frame, or a longer one than the peer may send.
        """
        block = self._connection.recv(_READ_BYTES)
        if not block:
            raise ConnectionResetError("the connection was closed")
        self._received += block
        while len(self._received) >= _HEADER.size:
            kind, length = _HEADER.unpack_from(self._received)
            if length > self._longest_bytes:
                raise ValueError(f"a frame of {length} bytes came; at most {self._longest_bytes} are taken")
            end = _HEADER.size + length
            if len(self._received) < end:
                return
            payload = bytes(self._received[_HEADER.size : end])
            del self._received[:end]
            yield Kind(kind), payload

    def close(self) -> None:
        """Closes the connection."""
        self._connection.close()

    def _ready(self, event: int, timeout_s: float) -> bool:
        poll = select.poll()
        poll.register(self._connection, event)
        return bool(poll.poll(timeout_s * 1000))
