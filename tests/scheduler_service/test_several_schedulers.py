"""Clients that balance over several schedulers: load spreads, one may go, connections are renewed."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from spearhead.client import AsyncClient, SamplingParams
from spearhead.errors import NotReady
from spearhead.tokenizer import Tokenizer
from tests.scheduler_service.stack import Stack, run_stack
from tests.scheduler_service.toy_model import ToyModel, letter_ids

FOUR = SamplingParams(max_tokens=4, ignore_eos=True)


@contextlib.asynccontextmanager
async def schedulers(
    folder: Path, tokenizer_folder: Path, tokenizer: Tokenizer, count: int = 2, **server: Any
) -> AsyncIterator[tuple[AsyncClient, list[Stack]]]:
    """Schedulers on ports of their own, and one client of all of them."""
    async with contextlib.AsyncExitStack() as opened:
        stacks = []
        for number in range(count):
            own = folder / str(number)
            own.mkdir()
            stacks.append(
                await opened.enter_async_context(
                    run_stack(
                        own,
                        tokenizer_folder,
                        model=ToyModel(letter_ids(tokenizer)),
                        with_draft=False,
                        server={"listen": "127.0.0.1:0"} | server,
                    )
                )
            )
        address = "ipv4:" + ",".join(stack.server.address for stack in stacks)
        client = await opened.enter_async_context(AsyncClient(address))
        yield client, stacks


def served(stack: Stack) -> int:
    return len({item.sequence_id for request in stack.verify.requests for item in request.items})


async def all_connected(client: AsyncClient, stacks: list[Stack]) -> None:
    """Asks until each scheduler has answered: connecting takes its time, and nobody waits for it."""
    async with asyncio.timeout(20):
        while not all(served(stack) for stack in stacks):
            await client.generate_text("hello", sampling=FOUR)


async def test_the_load_spreads_over_the_schedulers(
    socket_folder: Path, tokenizer_folder: Path, tokenizer: Tokenizer
) -> None:
    async with schedulers(socket_folder, tokenizer_folder, tokenizer) as (client, stacks):
        await all_connected(client, stacks)
        before = [served(stack) for stack in stacks]
        await asyncio.gather(*(client.generate_text("hello", sampling=FOUR) for _ in range(20)))
        assert [served(stack) - old for stack, old in zip(stacks, before, strict=True)] == [10, 10]


async def test_what_a_draining_scheduler_refuses_another_one_answers(
    socket_folder: Path, tokenizer_folder: Path, tokenizer: Tokenizer
) -> None:
    async with schedulers(socket_folder, tokenizer_folder, tokenizer) as (client, stacks):
        await all_connected(client, stacks)
        running = await stacks[0].open(stacks[0].request(max_tokens=3900))
        draining = asyncio.create_task(stacks[0].server.drain(20.0))
        await stacks[0].wait_load(lambda _: stacks[0].server.health.serving("readiness") is False)
        before = [served(stack) for stack in stacks]
        answers = await asyncio.gather(*(client.generate_text("hello", sampling=FOUR) for _ in range(6)))
        assert [len(answer.token_ids) for answer in answers] == [4] * len(answers)
        assert [served(stack) - old for stack, old in zip(stacks, before, strict=True)] == [0, 6]
        running.cancel()
        await draining


async def test_a_scheduler_that_dies_costs_only_answers_that_had_begun(
    socket_folder: Path, tokenizer_folder: Path, tokenizer: Tokenizer
) -> None:
    async with schedulers(socket_folder, tokenizer_folder, tokenizer) as (client, stacks):
        await all_connected(client, stacks)
        begun = await stacks[0].open(stacks[0].request(max_tokens=3900))
        await stacks[0].server.drain(0.0)
        answers = await asyncio.gather(*(client.generate_text("hello", sampling=FOUR) for _ in range(10)))
        assert [len(answer.token_ids) for answer in answers] == [4] * len(answers)
        begun.cancel()


async def test_without_time_left_a_refused_request_is_not_tried_again(
    socket_folder: Path, tokenizer_folder: Path, tokenizer: Tokenizer
) -> None:
    async with schedulers(socket_folder, tokenizer_folder, tokenizer, count=1) as (client, stacks):
        await stacks[0].server.drain(0.0)
        with pytest.raises(NotReady):
            await client.generate_text("hello", sampling=FOUR, timeout_s=0.05)
