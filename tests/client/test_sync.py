import asyncio

import pytest

from spearhead.client import Client, Delta, Finished, RetryPolicy, SamplingParams, Started, TargetConfig
from spearhead.errors import DeadlineExceeded, InvalidRequest, NotReady, Unauthenticated
from spearhead.rpc import EndpointConfig
from tests.scheduler_fake import RANDOM_SEED, Serving

FAST = RetryPolicy(attempts=3, initial_backoff_s=0.0, max_backoff_s=1.0)
FOUR = SamplingParams(max_tokens=4, seed=9)


async def in_thread(target, action, retry=FAST):
    """Runs ``action(client)`` beside the event loop that serves the fake."""

    def work():
        with Client(target, retry=retry) as client:
            return action(client)

    return await asyncio.to_thread(work)


async def test_an_answer_is_started_then_deltas_then_finished(running):
    events = await in_thread(running.address, lambda client: list(client.generate("hi", sampling=FOUR)))
    assert isinstance(events[0], Started)
    assert [event.text for event in events[1:-1]] == ["0 ", "1 ", "2 ", "3 "]
    assert isinstance(events[-1], Finished)


async def test_a_whole_answer_can_be_had_at_once(running):
    result = await in_thread(running.address, lambda client: client.generate_text("hi", sampling=FOUR))
    assert result.text == "0 1 2 3 "


async def test_unavailable_before_the_first_message_is_retried_with_the_same_id(running):
    running.scheduler.failures = [NotReady("starting", retry_after_s=0.0), NotReady("starting")]
    await in_thread(running.address, lambda client: client.generate_text("hi", sampling=FOUR))
    assert len({request.request_id for request, _ in running.scheduler.requests}) == 1
    assert len(running.scheduler.requests) == 3


async def test_an_answer_that_ends_after_started_is_asked_for_again_with_its_seed(running):
    running.scheduler.starts_only = 1
    two = SamplingParams(max_tokens=2)
    result = await in_thread(running.address, lambda client: client.generate_text("hi", sampling=two))
    assert result.token_ids == (0, 1)
    assert result.started.seed == RANDOM_SEED
    assert running.scheduler.requests[1][0].sampling.seed == RANDOM_SEED


async def test_unavailable_after_a_token_is_not_retried(running):
    running.scheduler.break_after = 1
    with pytest.raises(NotReady, match="verify service is away"):
        await in_thread(running.address, lambda client: client.generate_text("hi", sampling=FOUR))
    assert len(running.scheduler.requests) == 1


async def test_the_servers_error_arrives_as_the_same_class(running):
    running.scheduler.failures = [InvalidRequest("bad", field="sampling.top_p")]
    with pytest.raises(InvalidRequest) as caught:
        await in_thread(running.address, lambda client: client.generate_text("hi", sampling=FOUR))
    assert caught.value.field == "sampling.top_p"


async def test_leaving_the_loop_cancels_the_request_on_the_server(running):
    running.scheduler.endless = True

    def read_one_delta(client):
        for event in client.generate("hi"):
            if isinstance(event, Delta):
                return event.text
        return None

    assert await in_thread(running.address, read_one_delta) == "0 "
    async with asyncio.timeout(5):
        await running.scheduler.gone.wait()


async def test_the_deadline_ends_a_stream(running):
    running.scheduler.endless = True
    with pytest.raises(DeadlineExceeded):
        await in_thread(running.address, lambda client: client.generate_text("hi", timeout_s=0.2))


async def test_abort_info_load_and_readiness_are_answered(running):
    def ask(client):
        client.wait_ready(5.0)
        return client.abort("unknown"), client.server_info(), client.load()

    found, info, load = await in_thread(running.address, ask)
    assert (found, info.variant, load.kv_cache_usage) == (False, "w4", 0.25)


async def test_wait_ready_says_what_it_saw_last(running):
    running.server.health.set_ready(False, "loading")
    with pytest.raises(NotReady, match="answers that it is not ready"):
        await in_thread(running.address, lambda client: client.wait_ready(0.05, poll_interval_s=0.01))


async def test_nobody_listening_is_said_with_the_address(tmp_path):
    address = f"unix:{tmp_path}/nobody.sock"
    with pytest.raises(NotReady, match="cannot be reached"):
        await in_thread(address, lambda client: client.server_info())


async def test_a_token_file_lets_the_client_in(tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_text("secret\n")
    async with Serving(EndpointConfig(listen="127.0.0.1:0", token_file=tokens)) as served:
        with pytest.raises(Unauthenticated):
            await in_thread(served.address, lambda client: client.server_info())
        target = TargetConfig(address=served.address, token_file=tokens)
        result = await in_thread(target, lambda client: client.generate_text("hi", sampling=FOUR))
    assert result.text == "0 1 2 3 "
