"""What the loop learns from its steps."""

import asyncio

import pytest

from spearhead.v1 import types_pb2
from tests.scheduler_service.conftest import StackFactory
from tests.scheduler_service.latencies import compute_bound


async def test_a_step_that_a_cached_prefix_shortened_teaches_nothing_about_latency(
    make_stack: StackFactory,
) -> None:
    async with make_stack(table=compute_bound(), with_draft=False) as stack:
        ratios = []
        for prompt in (range(40), range(50), range(100, 140)):
            await stack.generate(stack.request(prompt, max_tokens=1))
            ratios.append(stack.metric("step_prediction_ratio"))
    whole, cached, whole_again = ratios
    assert 1.0 > whole == cached > whole_again


async def test_a_step_with_an_error_teaches_nothing_about_latency(make_stack: StackFactory) -> None:
    async with make_stack(table=compute_bound(), with_draft=False) as stack:
        ratios = []
        stack.verify.before_step = lambda count: ratios.append(stack.metric("step_prediction_ratio"))
        stack.verify.item_faults = {1: types_pb2.ITEM_ERROR_REASON_CACHE_MISS}
        await stack.generate(stack.request(range(40), max_tokens=2))
    before, after_error, after_prompt, *_ = ratios
    assert before == 0.0  # There was no step to learn from.
    assert after_error == 1.0 > after_prompt


@pytest.mark.parametrize("limit", [1, 3, 24, 25])
async def test_no_sequence_is_planned_beyond_what_the_worker_computes_at_once(
    make_stack: StackFactory, limit: int
) -> None:
    policy = {"static_step_tokens": 64, "static_draft_tokens": 4}
    async with make_stack(verify={"max_compute_tokens": limit}, policy=policy) as stack:
        requests = [stack.request(range(i, i + 50), max_tokens=20) for i in (0, 100)]
        answers = await asyncio.gather(*(stack.generate(request) for request in requests))
        assert [answer.token_ids for answer in answers] == [stack.expected(r) for r in requests]
        counts = [item.max_compute_tokens for step in stack.verify.requests for item in step.items]
        assert max(counts) == (24 if limit == 25 else limit)  # Chunks end with a page of 4.
        await stack.idle()
