"""Whatever happens on the way, the client gets the tokens that the target's law gives."""

import asyncio
import random
from collections.abc import Sequence

import pytest

from scheduler_service.latency_table import LatencyTable
from spearhead.v1 import types_pb2
from tests.scheduler_service.conftest import StackFactory
from tests.scheduler_service.fake_workers import Drafts
from tests.scheduler_service.latencies import compute_bound, memory_bound
from tests.scheduler_service.stack import Answer, Stack
from tests.scheduler_service.toy_model import ToyModel

PROMPTS = ["a", "once upon a time", "the quick brown fox jumps over the lazy dog " * 3]


def noisy(model: ToyModel, share: float) -> Drafts:
    """Right with probability ``share`` at each position."""

    def draft(tokens: Sequence[int], count: int, sampling: types_pb2.WorkerSampling) -> list[int]:
        generator = random.Random(len(tokens))
        right = model.generate(tokens, count, sampling)
        return [token if generator.random() < share else model.vocabulary[0] for token in right]

    return draft


def hostile(tokens: Sequence[int], count: int, sampling: types_pb2.WorkerSampling) -> list[int]:
    """Nonsense: ids beyond every vocabulary, too many drafts, none at all."""
    generator = random.Random(len(tokens))
    return [generator.choice([0, 1, 255, 256, 4_000_000_000]) for _ in range(generator.randint(0, 3 * count))]


async def check(stack: Stack, **fields: object) -> list[Answer]:
    """Runs every prompt at once, and compares."""
    requests = [stack.request(prompt, max_tokens=24, **fields) for prompt in PROMPTS]
    answers = await asyncio.gather(*(stack.generate(request) for request in requests))
    for request, answer in zip(requests, answers, strict=True):
        assert answer.token_ids == stack.expected(request)
        assert answer.text == stack.tokenizer.decode(answer.token_ids)
    await stack.idle()
    return answers


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("max_draft_tokens", range(9))
async def test_output_does_not_depend_on_the_draft_length(
    make_stack: StackFactory, max_draft_tokens: int, temperature: float
) -> None:
    async with make_stack(policy={"static_draft_tokens": 8}) as stack:
        for share in (1.0, 0.6):
            stack.draft.drafter = noisy(stack.model, share)
            await check(stack, max_draft_tokens=max_draft_tokens, temperature=temperature)


async def test_a_perfect_drafter_is_always_accepted(make_stack: StackFactory) -> None:
    async with make_stack(policy={"static_draft_tokens": 4}) as stack:
        request = stack.request(max_tokens=500)
        answer = await stack.generate(request)
        assert answer.token_ids == stack.expected(request)
        speculation = answer.finished.speculation
        assert speculation.accepted_tokens == speculation.drafted_tokens > 300
        assert speculation.active


async def test_a_hostile_drafter_changes_nothing(make_stack: StackFactory) -> None:
    async with make_stack(policy={"static_draft_tokens": 4}) as stack:
        stack.draft.drafter = hostile
        await check(stack)


async def test_a_drafter_that_always_proposes_the_end_changes_nothing(make_stack: StackFactory) -> None:
    async with make_stack(policy={"static_draft_tokens": 3}) as stack:
        (eos,) = stack.tokenizer.eos_token_ids
        stack.draft.drafter = lambda tokens, count, sampling: [eos] * count
        answers = await check(stack)
        assert all(answer.finished.speculation.accepted_tokens == 0 for answer in answers)


@pytest.mark.parametrize("step_tokens", [4, 5, 7, 16, 64])
async def test_output_does_not_depend_on_the_chunking(make_stack: StackFactory, step_tokens: int) -> None:
    policy = {"static_step_tokens": step_tokens, "static_draft_tokens": 2}
    async with make_stack(policy=policy, limits={"max_step_tokens": step_tokens}) as stack:
        await check(stack)


@pytest.mark.parametrize("kind", ["table", "linear"])
@pytest.mark.parametrize("table", [memory_bound(), compute_bound()], ids=["memory", "compute"])
async def test_output_does_not_depend_on_the_policy(
    make_stack: StackFactory, table: LatencyTable, kind: str
) -> None:
    async with make_stack(table=table, policy={"kind": kind, "static_step_tokens": 32}) as stack:
        stack.draft.drafter = noisy(stack.model, 0.7)
        for slo in ({}, {"itl_ms": 12.0}):
            await check(stack, slo=slo)
        assert stack.metric("step_prediction_ratio") > 0


async def test_output_does_not_depend_on_the_prefix_cache(stack: Stack) -> None:
    request = stack.request(PROMPTS[2], max_tokens=8)
    first = await stack.generate(request)
    second = await stack.generate(request)
    assert first.token_ids == second.token_ids == stack.expected(request)
    assert first.finished.usage.cached_tokens == 0
    # All full pages but the last token, of which the logits are needed.
    length = first.finished.usage.prompt_tokens
    assert second.finished.usage.cached_tokens == (length - 1) // 4 * 4


@pytest.mark.parametrize("page_count", [45, 60])
async def test_output_survives_preemption(make_stack: StackFactory, page_count: int) -> None:
    policy = {"static_draft_tokens": 3, "static_step_tokens": 32}
    async with make_stack(verify={"page_count": page_count}, policy=policy) as stack:
        requests = [stack.request(f"request number {i} wants", max_tokens=100) for i in range(6)]
        answers = await asyncio.gather(*(stack.generate(request) for request in requests))
        for request, answer in zip(requests, answers, strict=True):
            assert answer.token_ids == stack.expected(request)
        assert sum(answer.finished.timings.preemptions for answer in answers) > 0
        assert stack.metric("num_preemptions_total") > 0
        await stack.idle()


async def test_output_survives_a_drafter_without_pages(make_stack: StackFactory) -> None:
    async with make_stack(draft={"page_count": 12}) as stack:
        await check(stack)


@pytest.mark.parametrize("reason", ["CACHE_MISS", "STALE_EPOCH", "OUT_OF_PAGES"])
async def test_output_survives_errors_of_single_items(make_stack: StackFactory, reason: str) -> None:
    value = types_pb2.ItemErrorReason.Value(f"ITEM_ERROR_REASON_{reason}")
    async with make_stack() as stack:
        stack.verify.item_faults = dict.fromkeys((2, 5, 9), value)
        stack.draft.item_faults = dict.fromkeys((1, 4, 7), value)
        await check(stack)
        assert not stack.verify.item_faults
        assert not stack.draft.item_faults


@pytest.mark.parametrize("reason", ["NON_FINITE", "INVALID"])
async def test_drafts_that_the_target_cannot_compute_are_left_out(
    make_stack: StackFactory, reason: str
) -> None:
    value = types_pb2.ItemErrorReason.Value(f"ITEM_ERROR_REASON_{reason}")
    async with make_stack() as stack:
        request = stack.request(max_tokens=12)
        stack.verify.item_faults = {3: value}  # The second step after the prompt: it has drafts.
        answer = await stack.generate(request)
        assert answer.token_ids == stack.expected(request)
        await stack.idle()


async def test_output_survives_a_lost_verify_service(make_stack: StackFactory) -> None:
    async with make_stack() as stack:
        requests = [stack.request(prompt, max_tokens=40) for prompt in PROMPTS]

        def break_at(count: int) -> None:
            if count in (4, 9):
                raise RuntimeError("injected")

        stack.verify.before_step = break_at
        answers = await asyncio.gather(*(stack.generate(request) for request in requests))
        for request, answer in zip(requests, answers, strict=True):
            assert answer.token_ids == stack.expected(request)
        assert stack.metric("step_failures_total") == 2
        await stack.idle()


async def test_output_survives_a_restart_of_the_verify_service(make_stack: StackFactory) -> None:
    async with make_stack() as stack:
        request = stack.request(max_tokens=1000)
        stream = await stack.open(request, timeout=30)
        await stack.verify_server.kill()
        await stack.wait_workers(lambda: not stack.scheduler.ready)
        await stack.verify_server.start()
        answer = await stream.rest()
        assert answer.token_ids == stack.expected(request)
        assert stack.metric("step_failures_total") >= 1
        await stack.idle()


async def test_output_survives_a_drafter_killed_on_the_way(make_stack: StackFactory) -> None:
    async with make_stack() as stack:
        request = stack.request(max_tokens=1000)
        stream = await stack.open(request)
        await stack.verify.wait_for(
            lambda: any(item.draft_token_count for step in stack.verify.requests for item in step.items)
        )
        await stack.draft_server.kill()
        answer = await stream.rest()
        assert answer.token_ids == stack.expected(request)
        assert answer.finished.speculation.rounds > answer.finished.usage.completion_tokens / 2
        assert stack.metric("draft_up") == 0
        assert answer.finished.speculation.active
        assert answer.finished.speculation.inactive_reason.startswith("draft service lost: ")
        assert " since round " in answer.finished.speculation.inactive_reason


async def test_speculation_resumes_and_catches_up_when_the_drafter_is_back(make_stack: StackFactory) -> None:
    async with make_stack() as stack:
        await stack.draft_server.kill()
        await stack.wait_workers(lambda: not stack.scheduler.pool.draft_available)
        request = stack.request(max_tokens=3000)
        stream = await stack.open(request)
        await stack.verify.wait_for(lambda: len(stack.verify.requests) > 60)  # Far behind by now.
        assert stack.draft.drafted_count == 0
        await stack.draft_server.start()
        answer = await stream.rest()
        assert answer.token_ids == stack.expected(request)
        speculation = answer.finished.speculation
        assert speculation.accepted_tokens == speculation.drafted_tokens > 0


async def test_a_sequence_that_the_drafter_could_not_compute_is_tried_again(make_stack: StackFactory) -> None:
    async with make_stack() as stack:
        stack.draft.item_faults = {1: types_pb2.ITEM_ERROR_REASON_NON_FINITE}
        request = stack.request(max_tokens=200)
        answer = await stack.generate(request)
        assert answer.token_ids == stack.expected(request)
        speculation = answer.finished.speculation
        assert 60 < speculation.rounds < 150
        assert speculation.drafted_tokens > 0


async def test_a_request_in_a_full_batch_equals_the_request_alone(make_stack: StackFactory) -> None:
    async with make_stack(limits={"max_running_requests": 8}) as stack:
        request = stack.request(PROMPTS[1], max_tokens=30, seed=11)
        alone = await stack.generate(request)
        others = [stack.request(f"{i} other", max_tokens=30, seed=i) for i in range(20)]
        together, *_ = await asyncio.gather(*(stack.generate(r) for r in (request, *others)))
        assert together.token_ids == alone.token_ids
        assert together.text == alone.text
        await stack.idle()
