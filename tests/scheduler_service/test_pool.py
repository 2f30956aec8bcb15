"""Several workers behind one scheduler: pinned sequences, shared load, and what the loss of any one does."""

import asyncio
from collections.abc import Sequence

import grpc
import pytest

from spearhead.errors import NotReady
from spearhead.rpc import error_from_rpc
from spearhead.v1 import scheduler_pb2
from tests.scheduler_service.conftest import StackFactory
from tests.scheduler_service.stack import Stack, Stream


def sequences_of(stack: Stack) -> list[set[int]]:
    """Of each verify worker, the sequences that it was ever asked to compute."""
    return [{item.sequence_id for r in worker.requests for item in r.items} for worker in stack.verifies]


async def open_all(stack: Stack, requests: Sequence[scheduler_pb2.GenerateRequest]) -> list[Stream]:
    return [await stack.open(request) for request in requests]


async def finish(
    stack: Stack, requests: Sequence[scheduler_pb2.GenerateRequest], streams: list[Stream]
) -> None:
    answers = await asyncio.gather(*(stream.rest() for stream in streams))
    assert [answer.token_ids for answer in answers] == [stack.expected(request) for request in requests]


def long_requests(stack: Stack, count: int, tokens: int = 400) -> list[scheduler_pb2.GenerateRequest]:
    return [stack.request(f"story {n}", max_tokens=tokens, seed=n) for n in range(count)]


async def test_two_workers_share_the_load_and_each_keeps_its_sequences(make_stack: StackFactory) -> None:
    async with make_stack(verify_count=2, draft_count=2) as stack:
        requests = long_requests(stack, 6)
        await finish(stack, requests, await open_all(stack, requests))
        first, second = sequences_of(stack)
        assert (len(first), len(second)) == (3, 3)
        assert not first & second
        assert all(draft.requests for draft in stack.drafts)
        await stack.idle()


async def test_a_newcomer_goes_where_pages_are_free(make_stack: StackFactory) -> None:
    async with make_stack(verify_count=2, with_draft=False, verify={"page_count": 400}) as stack:
        long = await stack.open(stack.request("x" * 1000, max_tokens=500))
        stack.verify.gate.clear()  # However slow this test is, the long one does not end meanwhile.
        short = [await stack.open(stack.request(f"{n}", max_tokens=100)) for n in range(4)]
        first, second = sequences_of(stack)
        assert (first, len(second)) == ({1}, 4)
        stack.verify.gate.set()
        for stream in (long, *short):
            stream.cancel()
        await stack.idle()


async def test_a_lost_workers_streams_go_on_elsewhere_with_the_same_text(make_stack: StackFactory) -> None:
    async with make_stack(verify_count=2, draft_count=2) as stack:
        requests = long_requests(stack, 6, tokens=700)
        streams = await open_all(stack, requests)
        await stack.verify_servers[0].kill()
        await finish(stack, requests, streams)
        first, second = sequences_of(stack)
        assert len(first) == 3
        assert len(second) == 6
        assert stack.metric("requests_moved_total") == 3
        assert (stack.scheduler.ready, stack.metric("verify_up")) == (True, 1)


async def test_a_worker_that_returns_gets_new_sequences(make_stack: StackFactory) -> None:
    async with make_stack(verify_count=2, with_draft=False) as stack:
        old = await stack.open(stack.request("old", max_tokens=3900))
        pinned = await stack.open(stack.request("pinned", max_tokens=3900))
        await stack.verify_servers[0].kill()
        await stack.wait_workers(lambda: stack.metric("verify_up") == 1)
        await stack.verify_servers[0].start()
        await stack.wait_workers(lambda: stack.metric("verify_up") == 2)
        known = sequences_of(stack)[0]
        request = stack.request("new", max_tokens=20)
        assert (await stack.generate(request)).token_ids == stack.expected(request)
        assert sequences_of(stack)[0] - known == {3}
        for stream in (old, pinned):
            stream.cancel()
        await stack.idle()


async def test_a_worker_that_hangs_loses_its_sequences_to_the_other(make_stack: StackFactory) -> None:
    limits = {"verify_timeout_s": 0.2}
    async with make_stack(verify_count=2, with_draft=False, limits=limits) as stack:
        requests = long_requests(stack, 4, tokens=300)
        stack.verifies[0].gate.clear()
        streams = [Stream(stack.stub.Generate(request)) for request in requests]
        await finish(stack, requests, streams)
        assert stack.metric("requests_moved_total") >= 1
        stack.verifies[0].gate.set()
        await stack.idle()


async def test_restarting_each_worker_in_turn_under_load_loses_no_request(make_stack: StackFactory) -> None:
    async with make_stack(verify_count=2, draft_count=2) as stack:
        requests = long_requests(stack, 6, tokens=1000)
        streams = [Stream(stack.stub.Generate(request, timeout=60.0)) for request in requests]
        answers = asyncio.gather(*(stream.rest() for stream in streams))
        for server in (*stack.verify_servers, *stack.draft_servers):
            seen = len(server.worker.requests)
            await server.worker.wait_for(lambda w=server.worker, n=seen: len(w.requests) > n)
            await server.kill()
            connections = server.worker.connection_count
            await server.start()
            if server in stack.verify_servers:  # A drafter is only looked for by who needs another one.
                await server.worker.wait_for(lambda w=server.worker, n=connections: w.connection_count > n)
        assert [answer.token_ids for answer in await answers] == [stack.expected(r) for r in requests]
        await stack.idle()


async def test_an_engine_whose_drafter_is_lost_uses_another_one(make_stack: StackFactory) -> None:
    async with make_stack(verify_count=2, draft_count=2) as stack:
        requests = long_requests(stack, 4, tokens=700)
        streams = await open_all(stack, requests)
        await stack.draft_servers[1].kill()
        await stack.drafts[0].wait_for(lambda: len(stack.drafts[0].caches) == 2)
        await finish(stack, requests, streams)
        assert stack.metric("draft_up") == 2


async def test_while_all_workers_are_lost_requests_wait_and_go_on_with_the_first_that_returns(
    make_stack: StackFactory,
) -> None:
    async with make_stack(verify_count=2, with_draft=False) as stack:
        requests = long_requests(stack, 4, tokens=1000)
        streams = await open_all(stack, requests)
        for server in stack.verify_servers:
            await server.kill()
        await stack.wait_workers(lambda: not stack.scheduler.ready)
        await stack.verify_servers[1].start()
        await finish(stack, requests, streams)
        await stack.idle()


async def test_without_any_worker_requests_without_deadline_give_up_in_the_end(
    make_stack: StackFactory,
) -> None:
    async with make_stack(verify_count=2, limits={"verify_wait_s": 0.1}) as stack:
        streams = await open_all(stack, long_requests(stack, 2, tokens=3900))
        for server in stack.verify_servers:
            await server.kill()
        for stream in streams:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stream.rest()
            assert isinstance(error_from_rpc(caught.value), NotReady)
        assert list(stack.scheduler.requests) == []


async def test_a_stream_stays_with_workers_that_have_its_weights(make_stack: StackFactory) -> None:
    async with make_stack(verify_count=3, with_draft=False) as stack:
        stack.verifies[1].revision = "sha256:2"
        await stack.verify_servers[1].kill()
        await stack.verify_servers[1].start()
        await stack.wait_workers(
            lambda: (
                len({e.target.revision for e in stack.scheduler.pool.ready_engines}) == 2
                and stack.metric("verify_up") == 3
            )
        )
        requests = long_requests(stack, 3, tokens=700)
        streams = await open_all(stack, requests)
        other = sequences_of(stack)[1]
        await stack.verify_servers[0].kill()
        await finish(stack, requests, streams)
        assert sequences_of(stack)[1] == other
        assert len(sequences_of(stack)[2]) == 2


async def test_a_request_that_fits_only_the_busy_worker_keeps_nobody_from_the_other(
    make_stack: StackFactory,
) -> None:
    async with make_stack(verify_count=2, with_draft=False, limits={"max_running_requests": 1}) as stack:
        stack.verifies[1].context_length = 100
        await stack.verify_servers[1].kill()
        await stack.verify_servers[1].start()
        await stack.wait_workers(
            lambda: (
                len({e.target.longest for e in stack.scheduler.pool.ready_engines}) == 2
                and stack.metric("verify_up") == 2
            )
        )
        running = await stack.open(stack.request("long", max_tokens=3000))
        waiting = Stream(stack.stub.Generate(stack.request("long too", max_tokens=3000)))
        await waiting.next("started")
        small = stack.request("small", max_tokens=10)
        assert (await stack.generate(small)).token_ids == stack.expected(small)
        assert (len(sequences_of(stack)[0]), len(sequences_of(stack)[1])) == (1, 1)
        running.cancel()
        waiting.cancel()
        await stack.idle()


async def test_workers_come_and_go_with_their_name(make_stack: StackFactory) -> None:
    found: list[str] = []

    async def resolve(host: str, port: int) -> list[str]:
        assert (host, port) == ("verify", 1)
        return found

    limits = {"resolve_interval_s": 0.02}
    async with make_stack(
        verify_count=2, with_draft=False, limits=limits, resolve=resolve, wait_ready=False
    ) as stack:
        pool = stack.scheduler.pool
        assert (pool.ready, "DNS" in pool.problem) == (False, True)
        found.append(stack.verify_servers[0].address)
        await stack.wait_workers(lambda: stack.metric("verify_up") == 1)
        request = stack.request("moves", max_tokens=1500)
        stream = await stack.open(request)
        found.append(stack.verify_servers[1].address)
        await stack.wait_workers(lambda: stack.metric("verify_up") == 2)
        steps = pool.step_count
        found.pop(0)
        await stack.verify_servers[0].kill()
        assert (await stream.rest()).token_ids == stack.expected(request)
        await stack.wait_load(lambda _: len(pool.engines) == 1)
        assert [engine.address for engine in pool.engines] == found
        assert pool.step_count > steps
        await stack.idle()
