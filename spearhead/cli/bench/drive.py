"""Sends a workload to a server and records what a client sees."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from spearhead.cli.bench.workload import PlannedRequest
from spearhead.client import (
    AsyncClient,
    Delta,
    Finished,
    Message,
    RequestOptions,
    SamplingParams,
    Speculation,
)
from spearhead.errors import SpearheadError


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one request saw; times in seconds on the client's clock.

    Attributes:
        sent_s: When it was sent, from the start of the run.
        done_s: When it ended.
        token_times_s: Arrival of each delta and the number of its tokens.
        finished: The server's last message; ``None`` when cancelled or failed.
        cancelled: The client hung up as planned.
        error: Status and message of a failure; empty = none.
    """

    sent_s: float
    done_s: float
    token_times_s: tuple[tuple[float, int], ...]
    finished: Finished | None
    cancelled: bool = False
    error: str = ""

    @property
    def token_count(self) -> int:
        """Tokens that arrived."""
        return sum(count for _, count in self.token_times_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class DriveOptions:
    """How requests are sent.

    Attributes:
        concurrency: Most requests at once in a closed loop; 0 = open loop, by arrival times.
        temperature: Of every request.
        draft_tokens: Most drafts a step; ``None`` = the scheduler chooses.
        timeout_s: Deadline of each request.
    """

    concurrency: int = 8
    temperature: float = 0.0
    draft_tokens: int | None = None
    timeout_s: float = 600.0


async def drive(
    client: AsyncClient,
    requests: Sequence[PlannedRequest],
    options: DriveOptions,
    on_done: Callable[[Outcome], None],
) -> list[Outcome]:
    """Runs the workload.

    Args:
        client: Connected to the server.
        requests: In the order in which they are sent.
        options: How.
        on_done: Called when a request has ended.

    Returns:
        One outcome a request, in the workload's order.
    """
    began_s = time.monotonic()
    slots = asyncio.Semaphore(options.concurrency or len(requests))

    async def one(request: PlannedRequest) -> Outcome:
        await asyncio.sleep(max(0.0, request.arrival_s - (time.monotonic() - began_s)))
        async with slots:
            outcome = await _send(client, request, options, began_s)
        on_done(outcome)
        return outcome

    return list(await asyncio.gather(*(one(request) for request in requests)))


async def _send(
    client: AsyncClient, request: PlannedRequest, options: DriveOptions, began_s: float
) -> Outcome:
    sent_s = time.monotonic() - began_s
    times: list[tuple[float, int]] = []
    finished, cancelled, error = None, False, ""
    try:
        async with aclosing(client.generate(**_options(request, options))) as events:
            async for event in events:
                if isinstance(event, Delta) and event.token_ids:
                    times.append((time.monotonic() - began_s, len(event.token_ids)))
                    cancelled = _hangs_up(request, times)
                elif isinstance(event, Finished):
                    finished = event
                if cancelled:
                    break
    except SpearheadError as failure:
        error = f"{failure.code.name}: {failure.message}"
    return Outcome(
        sent_s=sent_s,
        done_s=time.monotonic() - began_s,
        token_times_s=tuple(times),
        finished=finished,
        cancelled=cancelled,
        error=error,
    )


def _options(request: PlannedRequest, options: DriveOptions) -> RequestOptions:
    return {
        "messages": [Message(role="user", content=request.prompt)],
        "sampling": SamplingParams(
            temperature=options.temperature,
            max_tokens=request.max_tokens,
            seed=request.seed,
            ignore_eos=True,
        ),
        "speculation": Speculation(max_draft_tokens=options.draft_tokens),
        "timeout_s": options.timeout_s,
    }


def _hangs_up(request: PlannedRequest, times: list[tuple[float, int]]) -> bool:
    limit = request.cancel_after_tokens
    return limit is not None and sum(count for _, count in times) >= limit
