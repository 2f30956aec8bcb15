"""The bidi streams between scheduler and worker: which exist, and how their messages are read."""

import asyncio
from collections.abc import AsyncIterator, Hashable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from spearhead.worker.timing import Receipt

Request = TypeVar("Request")

_READ_AHEAD = 8


@dataclass(eq=False, slots=True)
class WorkerStream:
    """One open stream; its number scopes the sequence ids that its peer chooses."""

    number: int
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class StreamKeys:
    """Owns the set of open streams and numbers them."""

    def __init__(self) -> None:
        self._open: set[WorkerStream] = set()
        self._count = 0

    def open(self) -> WorkerStream:
        """A new stream."""
        self._count += 1
        stream = WorkerStream(number=self._count)
        self._open.add(stream)
        return stream

    def close(self, stream: WorkerStream) -> None:
        """Forgets a stream."""
        self._open.discard(stream)

    def end_all(self) -> None:
        """Asks every open stream to end after the message it is working on."""
        for stream in self._open:
            stream.ended.set()


def in_stream(keys: Iterable[Hashable], number: int) -> list[Hashable]:
    """The sequence keys, (stream number, sequence id) each, that belong to a stream."""
    return [key for key in keys if isinstance(key, tuple) and key[0] == number]


async def serve_stream(
    requests: AsyncIterator[Request], ended: asyncio.Event
) -> AsyncIterator[tuple[Request, Receipt]]:
    """Yields messages with the moment they arrived, read ahead so that waiting shows as queue time.

    Ends with the peer's half of the stream, or when ``ended`` is set.

    Raises:
        Exception: What broke the peer's half of the stream.
    """
    arrived: asyncio.Queue[tuple[Request, Receipt]] = asyncio.Queue(_READ_AHEAD)

    async def read() -> None:
        async for request in requests:
            await arrived.put((request, Receipt.now()))

    reader = asyncio.create_task(read())
    stop = asyncio.create_task(ended.wait())
    try:
        while not stop.done():
            message = asyncio.create_task(arrived.get())
            await asyncio.wait({message, reader, stop}, return_when=asyncio.FIRST_COMPLETED)
            if message.done():
                yield message.result()
                continue
            message.cancel()
            if reader.done() and arrived.empty():
                reader.result()  # raises what ended the peer's half, if it did not simply end
                return
    finally:
        reader.cancel()
        stop.cancel()
