"""Workers die, variants change, clients leave: output stays, pages come back."""

import asyncio
import random

import grpc
import pytest

from spearhead.client import Delta, SamplingParams, Speculation
from spearhead.errors import PrecisionUnavailable
from spearhead.v1 import verify_pb2, verify_pb2_grpc

PROMPT = [(13 * i) % 300 for i in range(37)]


def options(seed=1, tokens=60, prompt=PROMPT, drafts=None):
    return {
        "token_ids": prompt,
        "sampling": SamplingParams(temperature=0.8, seed=seed, max_tokens=tokens, ignore_eos=True),
        "speculation": Speculation(max_draft_tokens=drafts),
    }


async def first_delta(stream):
    async for event in stream:
        if isinstance(event, Delta):
            return list(event.token_ids)
    raise AssertionError("the stream ended without output")


async def rest_of(stream):
    tokens = []
    async for event in stream:
        if isinstance(event, Delta):
            tokens += event.token_ids
    return tokens


@pytest.mark.parametrize("which", ["verify", "draft"])
async def test_a_worker_that_restarts_mid_stream_changes_nothing(real_stack, which):
    async with real_stack(policy={"kind": "static", "static_draft_tokens": 3}) as stack:
        expected = (await stack.client.generate_text(**options(tokens=300))).token_ids
        stream = stack.client.generate(**options(tokens=300))
        tokens = await first_delta(stream)
        worker = getattr(stack, which)
        await worker.kill()
        await worker.restart()
        tokens += await rest_of(stream)
        assert tuple(tokens) == expected
        await stack.idle()


async def test_switching_variants_under_load_loses_no_request(real_stack):
    async with real_stack(policy={"kind": "static", "static_draft_tokens": 2}) as stack:
        async with grpc.aio.insecure_channel(stack.verify.address) as channel:
            stub = verify_pb2_grpc.VerifyServiceStub(channel)
            streams = [
                asyncio.create_task(stack.client.generate_text(**options(seed, 120))) for seed in range(6)
            ]
            for name in ("fp16", "w4", "fp16"):
                steps = (await stack.client.load()).step_count
                await stack.until(lambda steps=steps: stack.scheduler.pool.step_count > steps + 5)
                await stub.SetVariant(verify_pb2.SetVariantRequest(variant=name))
            answers = await asyncio.gather(*streams)
            assert all(len(answer.token_ids) == 120 for answer in answers)
            after = await stack.client.generate_text(**options(99))
        assert stack.verifier.variant == "fp16"
        await stack.idle()
    async with real_stack(variant="fp16") as fresh:
        assert (await fresh.client.generate_text(**options(99))).token_ids == after.token_ids


async def test_full_precision_is_refused_where_it_is_not_held(real_stack):
    async with real_stack() as stack:
        del stack.verifier.engine.variants["fp16"]
        with pytest.raises(PrecisionUnavailable, match="fp16"):
            await stack.client.generate_text(**options(), precision="full")
        assert len((await stack.client.generate_text(**options())).token_ids) == 60


async def test_cancelling_at_random_moments_frees_everything(real_stack):
    chance = random.Random(0)
    async with real_stack(policy={"kind": "static", "static_draft_tokens": 3}, pages=96) as stack:
        expected = (await stack.client.generate_text(**options(7))).token_ids

        async def one(index):
            stream = stack.client.generate(**options(index, tokens=80, prompt=PROMPT * (1 + index % 4)))
            wanted = chance.randrange(0, 40)
            count = 0
            async for event in stream:
                if isinstance(event, Delta):
                    count += len(event.token_ids)
                if count >= wanted:
                    break
            await stream.aclose()

        for start in range(0, 60, 12):
            await asyncio.gather(*(one(start + index) for index in range(12)))
        await stack.idle()
        answer = await stack.client.generate_text(**options(7))
        assert answer.token_ids == expected
        self_draft = answer.finished.speculation
        assert self_draft.accepted_tokens > 0
        await stack.idle()


async def test_many_requests_of_all_lengths_leave_nothing_behind(real_stack):
    chance = random.Random(1)
    async with real_stack(policy={"kind": "static", "static_draft_tokens": 2}, pages=128) as stack:
        gate = asyncio.Semaphore(12)

        async def one(index):
            async with gate:
                prompt = [chance.randrange(300) for _ in range(chance.randrange(1, 90))]
                request = options(index, chance.randrange(1, 24), prompt, drafts=index % 4)
                if index % 10:
                    return len((await stack.client.generate_text(**request)).token_ids)
                stream = stack.client.generate(**request)
                await anext(stream)
                await stream.aclose()
                return None

        lengths = await asyncio.gather(*(one(index) for index in range(150)))
        assert lengths.count(None) == 15
        assert all(length for length in lengths if length is not None)
        await stack.idle()
