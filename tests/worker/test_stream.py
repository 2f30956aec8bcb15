"""Worker streams: read ahead, ended by either side, errors not lost."""

import asyncio

import pytest

from spearhead.worker.stream import StreamKeys, in_stream, serve_stream


async def numbers(count, then=None):
    for number in range(count):
        yield number
    if then is not None:
        raise then


async def collect(requests, ended=None, seen=None):
    seen = [] if seen is None else seen
    async for request, _ in serve_stream(requests, ended or asyncio.Event()):
        seen.append(request)
    return seen


async def test_every_message_comes_in_order():
    assert await collect(numbers(50)) == list(range(50))


async def test_a_broken_stream_raises_after_what_had_arrived():
    seen: list[int] = []
    with pytest.raises(ConnectionError):
        await collect(numbers(3, ConnectionError("reset")), seen=seen)
    assert seen == [0, 1, 2]


async def test_a_drain_ends_a_silent_stream():
    async def silent():
        await asyncio.Event().wait()
        yield 0

    ended = asyncio.Event()
    task = asyncio.ensure_future(collect(silent(), ended))
    await asyncio.sleep(0)
    ended.set()
    async with asyncio.timeout(10):
        assert await task == []


async def test_receipts_do_not_wait_for_the_consumer():
    async for _, receipt in serve_stream(numbers(1), asyncio.Event()):
        assert receipt.monotonic_ns > 0
        assert receipt.unix_ns > 0


def test_streams_have_numbers_of_their_own_and_end_together():
    streams = StreamKeys()
    first, second = streams.open(), streams.open()
    assert first.number != second.number
    streams.close(first)
    streams.end_all()
    assert (first.ended.is_set(), second.ended.is_set()) == (False, True)
    assert in_stream([(1, 5), (2, 5), (1, 6)], 1) == [(1, 5), (1, 6)]
