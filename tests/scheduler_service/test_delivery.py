import asyncio

import pytest

from scheduler_service.accounting import Accounting, Summary
from scheduler_service.delivery import Delta, OutputChannel
from scheduler_service.output import Finish, FinishReason
from spearhead.errors import NotReady, SlowReader


def summary() -> Summary:
    return Accounting(0.0).summary(
        1.0,
        Finish(reason=FinishReason.LENGTH),
        prompt_tokens=1,
        completion_tokens=0,
        speculation_active=True,
        speculation_inactive="",
    )


async def test_deltas_merge_while_the_reader_lags() -> None:
    channel = OutputChannel(10)
    channel.put([1, 2], "ab")
    channel.put([3], "")
    channel.put([4], "c")
    assert await channel.take() == Delta(token_ids=[1, 2, 3, 4], texts=["ab", "c"])


async def test_the_end_comes_after_everything_that_was_put() -> None:
    channel, end = OutputChannel(10), summary()
    channel.put([1], "a")
    channel.end(end)
    assert isinstance(await channel.take(), Delta)
    assert await channel.take() is end


async def test_a_waiting_reader_wakes_up() -> None:
    channel = OutputChannel(10)
    reader = asyncio.create_task(channel.take())
    channel.put([5], "x")
    assert await reader == Delta(token_ids=[5], texts=["x"])


async def test_a_failure_is_raised_after_what_was_put() -> None:
    channel = OutputChannel(10)
    channel.put([1], "a")
    channel.end(NotReady("away"))
    assert isinstance(await channel.take(), Delta)
    with pytest.raises(NotReady, match="away"):
        await channel.take()


async def test_only_the_first_end_counts() -> None:
    channel, end = OutputChannel(10), summary()
    channel.end(end)
    channel.end(NotReady("late"))
    assert await channel.take() is end


async def test_a_reader_that_lags_too_far_is_refused_and_nothing_is_added() -> None:
    channel = OutputChannel(3)
    channel.put([1, 2], "ab")
    with pytest.raises(SlowReader, match=r"2 tokens wait.*at most 3"):
        channel.put([3, 4], "cd")
    assert await channel.take() == Delta(token_ids=[1, 2], texts=["ab"])
