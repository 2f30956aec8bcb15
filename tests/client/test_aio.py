import asyncio
import socket
from contextlib import aclosing

import pytest

from spearhead.client import AsyncClient, Delta, Finished, RetryPolicy, SamplingParams, Started, TargetConfig
from spearhead.errors import (
    Cancelled,
    DeadlineExceeded,
    InvalidRequest,
    NotReady,
    Overloaded,
    SpearheadError,
    Unauthenticated,
)
from spearhead.rpc import EndpointConfig
from tests.scheduler_fake import RANDOM_SEED, Serving

FAST = RetryPolicy(attempts=3, initial_backoff_s=0.0, max_backoff_s=1.0)
FOUR = SamplingParams(max_tokens=4, seed=9)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


async def test_an_answer_is_started_then_deltas_then_finished(running):
    async with AsyncClient(running.address) as client:
        events = [event async for event in client.generate("hi", sampling=FOUR, request_id="r1")]
    assert events[0] == Started(request_id="r1", prompt_token_count=3, seed=9)
    assert [event.text for event in events[1:-1]] == ["0 ", "1 ", "2 ", "3 "]
    assert isinstance(events[-1], Finished)
    assert events[-1].speculation.acceptance == 0.75


async def test_generate_text_joins_the_deltas(running):
    async with AsyncClient(running.address) as client:
        result = await client.generate_text(token_ids=[1, 2], sampling=FOUR)
    assert result.text == "0 1 2 3 "
    assert result.token_ids == (0, 1, 2, 3)
    assert result.finished.reason == "length"


async def test_unavailable_before_the_first_message_is_retried_with_the_same_id(running):
    running.scheduler.failures = [NotReady("starting", retry_after_s=0.0), NotReady("starting")]
    async with AsyncClient(running.address, retry=FAST) as client:
        result = await client.generate_text("hi", sampling=FOUR)
    ids = [request.request_id for request, _ in running.scheduler.requests]
    assert len(ids) == 3
    assert set(ids) == {result.started.request_id}


async def test_an_answer_that_ends_after_started_is_asked_for_again_with_its_seed(running):
    running.scheduler.starts_only = 2
    async with AsyncClient(running.address, retry=FAST) as client:
        events = [event async for event in client.generate("hi", sampling=SamplingParams(max_tokens=2))]
    assert [type(event) for event in events] == [Started, Delta, Delta, Finished]
    assert events[0].seed == RANDOM_SEED
    first, *again = [request for request, _ in running.scheduler.requests]
    assert not first.sampling.HasField("seed")
    assert [request.sampling.seed for request in again] == [RANDOM_SEED] * 2
    assert {request.request_id for request in again} == {first.request_id} == {events[0].request_id}


async def test_attempts_after_started_are_counted_too(running):
    running.scheduler.starts_only = 3
    async with AsyncClient(running.address, retry=FAST) as client:
        with pytest.raises(NotReady, match="verify service is away"):
            await client.generate_text("hi", sampling=FOUR)
    assert len(running.scheduler.requests) == FAST.attempts


async def test_unavailable_after_a_token_is_not_retried(running):
    running.scheduler.break_after = 1
    seen = []

    async def read(client):
        async for event in client.generate("hi", sampling=FOUR):
            seen.append(event)

    async with AsyncClient(running.address, retry=FAST) as client:
        with pytest.raises(NotReady, match="verify service is away"):
            await read(client)
    assert [type(event) for event in seen] == [Started, Delta]
    assert len(running.scheduler.requests) == 1


@pytest.mark.parametrize(
    "error",
    [
        InvalidRequest("bad", field="sampling.top_p"),
        Overloaded("full", retry_after_s=2.0),
        SpearheadError("bug"),
    ],
)
async def test_the_servers_error_arrives_as_the_same_class(running, error):
    running.scheduler.failures = [error]
    async with AsyncClient(running.address, retry=FAST) as client:
        with pytest.raises(type(error)) as caught:
            await client.generate_text("hi", sampling=FOUR)
    assert type(caught.value) is type(error)
    assert caught.value.message == error.message
    assert caught.value.field == error.field
    assert caught.value.retry_after_s == error.retry_after_s
    assert len(running.scheduler.requests) == 1


async def test_closing_the_stream_cancels_the_request_on_the_server(running):
    running.scheduler.endless = True
    async with AsyncClient(running.address) as client:
        async with aclosing(client.generate("hi")) as events:
            async for event in events:
                if isinstance(event, Delta):
                    break
        async with asyncio.timeout(5):
            await running.scheduler.gone.wait()


async def test_closing_the_client_ends_running_streams_with_an_error(running):
    running.scheduler.endless = True
    client = AsyncClient(running.address)
    first = asyncio.Event()

    async def read():
        async for _ in client.generate("hi"):
            first.set()

    reader = asyncio.create_task(read())
    await first.wait()
    await client.close()
    with pytest.raises(Cancelled):
        await reader


async def test_the_deadline_ends_a_stream(running):
    running.scheduler.endless = True
    async with AsyncClient(running.address) as client:
        with pytest.raises(DeadlineExceeded, match=running.address):
            async for _ in client.generate("hi", timeout_s=0.2):
                pass


async def test_an_answer_without_its_last_message_is_an_error(running):
    running.scheduler.finish = False
    async with AsyncClient(running.address) as client:
        with pytest.raises(SpearheadError, match="ended without its last message"):
            await client.generate_text("hi", sampling=FOUR)


async def test_nobody_listening_is_said_with_the_address():
    address = f"127.0.0.1:{free_port()}"
    async with AsyncClient(address, retry=FAST) as client:
        with pytest.raises(NotReady, match=f"{address} cannot be reached"):
            await client.server_info()


async def test_abort_info_and_load_are_answered(running):
    running.scheduler.failures = [NotReady("starting")]
    async with AsyncClient(running.address, retry=FAST) as client:
        assert await client.abort("unknown") is False
        info = await client.server_info()
        assert (info.target.model, info.variant, info.draft) == ("tiny", "w4", None)
        assert (await client.load()).kv_cache_usage == 0.25


async def test_wait_ready_returns_once_the_server_is_ready(running):
    running.server.health.set_ready(False, "loading")
    async with AsyncClient(running.address) as client:
        waiting = asyncio.create_task(client.wait_ready(10.0, poll_interval_s=0.01))
        with pytest.raises(NotReady, match="not ready after"):
            await client.wait_ready(0.05, poll_interval_s=0.01)
        assert not waiting.done()
        running.server.health.set_ready(True)
        await waiting


async def test_the_trace_context_travels_as_metadata(running):
    traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with AsyncClient(running.address) as client:
        await client.generate_text("hi", sampling=FOUR, traceparent=traceparent)
    assert running.scheduler.requests[0][1]["traceparent"] == traceparent


async def test_a_token_file_lets_the_client_in(tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_text("secret\n")
    async with Serving(EndpointConfig(listen="127.0.0.1:0", token_file=tokens)) as served:
        async with AsyncClient(served.address) as client:
            with pytest.raises(Unauthenticated):
                await client.server_info()
        async with AsyncClient(TargetConfig(address=served.address, token_file=tokens)) as client:
            assert (await client.server_info()).version == "0.1.0"


async def test_a_unix_socket_is_an_address(tmp_path):
    async with (
        Serving(EndpointConfig(listen=f"unix:{tmp_path}/s.sock")) as served,
        AsyncClient(served.address) as client,
    ):
        assert (await client.generate_text("hi", sampling=FOUR)).text == "0 1 2 3 "
