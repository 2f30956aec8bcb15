"""How an answer ends, what it carries, and what the workers were told."""

import asyncio

import pytest

from spearhead.v1 import scheduler_pb2, types_pb2
from tests.scheduler_service.conftest import StackFactory
from tests.scheduler_service.fake_workers import unpack
from tests.scheduler_service.stack import Stack
from tests.scheduler_service.toy_model import ToyModel, letter_ids

STOP, LENGTH = scheduler_pb2.FINISH_REASON_STOP, scheduler_pb2.FINISH_REASON_LENGTH
K = 4
WITH_DRAFTS = {"policy": {"static_draft_tokens": K}}


def saying(stack: Stack, text: str, then_eos: bool = False) -> ToyModel:
    """The target says ``text``, and goes on as it likes."""
    token_ids = stack.tokenizer.encode(text) + list(stack.tokenizer.eos_token_ids if then_eos else ())
    return ToyModel(
        letter_ids(stack.tokenizer), lambda index: token_ids[index] if index < len(token_ids) else None
    )


def let_say(stack: Stack, text: str, then_eos: bool = False) -> None:
    stack.model = stack.verify.model = stack.draft.model = saying(stack, text, then_eos)


@pytest.mark.parametrize("max_tokens", range(1, K + 3))
async def test_max_tokens_is_exact_with_full_acceptance(make_stack: StackFactory, max_tokens: int) -> None:
    async with make_stack(**WITH_DRAFTS) as stack:
        request = stack.request(max_tokens=max_tokens)
        answer = await stack.generate(request)
        assert answer.token_ids == stack.expected(request)
        assert answer.finished.reason == LENGTH
        assert answer.finished.usage.completion_tokens == max_tokens
        await stack.idle()


async def test_drafts_never_go_beyond_max_tokens(make_stack: StackFactory) -> None:
    async with make_stack(**WITH_DRAFTS) as stack:
        prompt = "abc"
        await stack.generate(stack.request(prompt, max_tokens=7))
        ends = [
            item.committed_length + len(unpack(item.token_ids))
            for request in stack.verify.requests
            for item in request.items
        ]
        assert max(ends) < len(prompt) + 7


async def test_a_stop_string_inside_an_accepted_run_ends_everything_there(make_stack: StackFactory) -> None:
    async with make_stack(**WITH_DRAFTS) as stack:
        let_say(stack, "one two stop three four")
        answer = await stack.generate(stack.request(stop=["stop", "never"], max_tokens=50))
        assert answer.text == "one two "
        assert answer.finished.reason == STOP
        assert answer.finished.stop_string == "stop"
        assert not answer.finished.HasField("stop_token_id")
        assert answer.token_ids == stack.tokenizer.encode("one two stop")
        assert answer.finished.usage.completion_tokens == len("one two stop")
        await stack.idle()


@pytest.mark.parametrize("position", range(2 * K + 2))
async def test_nothing_follows_the_end_token_wherever_it_is(make_stack: StackFactory, position: int) -> None:
    text = "abcdefghijklmnop"[:position]
    async with make_stack(**WITH_DRAFTS) as stack:
        let_say(stack, text, then_eos=True)
        (eos,) = stack.tokenizer.eos_token_ids
        answer = await stack.generate(stack.request(max_tokens=position + 2))
        assert answer.token_ids == [*stack.tokenizer.encode(text), eos]
        assert answer.text == text
        assert answer.finished.reason == STOP
        assert answer.finished.stop_token_id == eos
        await stack.idle()


async def test_a_stop_token_ends_the_answer_without_its_text(stack: Stack) -> None:
    let_say(stack, "abcdef")
    (stop_token_id,) = stack.tokenizer.encode("d")
    answer = await stack.generate(stack.request(stop_token_ids=[stop_token_id]))
    assert answer.text == "abc"
    assert answer.finished.stop_token_id == stop_token_id
    assert answer.finished.usage.completion_tokens == 4


async def test_ignored_end_tokens_are_generated_past(make_stack: StackFactory) -> None:
    async with make_stack(**WITH_DRAFTS) as stack:
        let_say(stack, "ab", then_eos=True)
        answer = await stack.generate(stack.request(ignore_eos=True, max_tokens=10))
        assert answer.finished.reason == LENGTH
        assert len(answer.token_ids) == 10
        assert stack.tokenizer.eos_token_ids[0] in answer.token_ids


@pytest.mark.parametrize("min_tokens", [1, 3, 6])
async def test_min_tokens_masks_the_end_token_until_then(make_stack: StackFactory, min_tokens: int) -> None:
    async with make_stack(**WITH_DRAFTS) as stack:
        (eos,) = stack.tokenizer.eos_token_ids
        model = ToyModel(letter_ids(stack.tokenizer), lambda index: eos)  # Wants to end at once, always.
        stack.model = stack.verify.model = stack.draft.model = model
        answer = await stack.generate(stack.request(min_tokens=min_tokens, max_tokens=20))
        assert len(answer.token_ids) == min_tokens + 1
        assert answer.token_ids[-1] == eos
        assert eos not in answer.token_ids[:-1]


async def test_text_never_splits_a_character(make_stack: StackFactory) -> None:
    text = "näïve 日本語 🦜🏳️‍🌈 end"
    for drafts in (0, 1, K):
        async with make_stack(policy={"static_draft_tokens": drafts}) as stack:
            let_say(stack, text)
            stream = await stack.open(stack.request(max_tokens=len(text.encode())))
            answer = await stream.rest()
            assert answer.text == text
            assert all("\ufffd" not in response.delta.text for response in stream.responses)


async def test_an_unfinished_character_at_the_end_is_shown_as_such(stack: Stack) -> None:
    let_say(stack, "ab日")
    answer = await stack.generate(stack.request(max_tokens=4))
    assert answer.text == "ab\ufffd"


async def test_logprobs_come_one_a_token(make_stack: StackFactory) -> None:
    async with make_stack(**WITH_DRAFTS) as stack:
        answer = await stack.generate(stack.request(max_tokens=13, logprobs=3))
        assert [entry.token_id for entry in answer.logprobs] == answer.token_ids
        assert all(len(entry.top_token_ids) == 12 for entry in answer.logprobs)


async def test_a_prompt_of_128k_tokens_with_all_logprobs_passes_the_streams(make_stack: StackFactory) -> None:
    verify = {"context_length": 140_000, "page_count": 10_000, "page_size": 16}
    async with make_stack(
        verify=verify, draft=verify, limits={"max_step_tokens": 65_536}, policy={"static_step_tokens": 65_536}
    ) as stack:
        request = stack.request([number % 200 for number in range(131_072)], max_tokens=20, logprobs=20)
        answer = await stack.generate(request)
        assert answer.token_ids == stack.expected(request)
        assert [entry.token_id for entry in answer.logprobs] == answer.token_ids
        assert all(len(entry.top_token_ids) == 80 for entry in answer.logprobs)
        sizes = [message.ByteSize() for message in stack.verify.requests]
        assert max(sizes) > 4 * 131_072
        assert answer.finished.speculation.drafted_tokens > 0
        await stack.idle()


async def test_a_drafter_that_was_busy_during_a_long_prompt_catches_up_with_all_of_it(
    make_stack: StackFactory,
) -> None:
    async with make_stack(
        limits={"max_step_tokens": 512, "draft_timeout_s": 20.0}, policy={"static_step_tokens": 512}
    ) as stack:
        stack.draft.gate.clear()
        answer = asyncio.create_task(stack.generate(stack.request([7] * 2048, max_tokens=200)))
        await stack.verify.wait_for(lambda: len(stack.verify.requests) >= 6)
        stack.draft.gate.set()
        await answer
        first, second = (
            [item.max_compute_tokens for item in request.items] for request in stack.draft.requests[:2]
        )
        assert first == [512]
        assert second[0] >= 2048 - 512


async def test_logprobs_end_where_the_output_ends(make_stack: StackFactory) -> None:
    async with make_stack(**WITH_DRAFTS) as stack:
        let_say(stack, "abcdefgh")
        answer = await stack.generate(stack.request(stop=["cd"], logprobs=0))
        assert (
            [entry.token_id for entry in answer.logprobs]
            == answer.token_ids
            == stack.tokenizer.encode("abcd")
        )


async def test_without_being_asked_for_there_are_no_logprobs(stack: Stack) -> None:
    answer = await stack.generate(stack.request(max_tokens=3))
    assert answer.logprobs == []
    assert not stack.verify.requests[0].items[0].HasField("logprob_count")


async def test_a_chat_is_laid_out_by_the_models_template(stack: Stack) -> None:
    def chat(**fields: object) -> scheduler_pb2.GenerateRequest:
        turns = [{"role": "user", "content": "hi"}]
        return scheduler_pb2.GenerateRequest(
            chat={"messages": turns, **fields}, sampling={"max_tokens": 2, "seed": 1}
        )

    for request, prompt in (
        (chat(), "[user]hi[assistant]"),
        (chat(add_generation_prompt=False), "[user]hi"),
    ):
        answer = await stack.generate(request)
        assert answer.token_ids == stack.expected(stack.request(prompt, max_tokens=2, seed=1))


async def test_token_ids_are_used_as_they_are(stack: Stack) -> None:
    request = stack.request([5, 250, 0, 17], max_tokens=5)
    answer = await stack.generate(request)
    assert answer.started.prompt_token_count == 4
    assert answer.token_ids == stack.expected(request)


async def test_the_seed_that_was_chosen_reproduces_the_output(stack: Stack) -> None:
    request = stack.request(max_tokens=20)
    request.sampling.ClearField("seed")
    first, second = [await stack.generate(request) for _ in range(2)]
    assert first.token_ids != second.token_ids
    request.sampling.seed = first.started.seed
    assert (await stack.generate(request)).token_ids == first.token_ids


async def test_both_workers_get_every_sampling_parameter(make_stack: StackFactory) -> None:
    async with make_stack(**WITH_DRAFTS) as stack:
        (stop_token_id,) = stack.tokenizer.encode("!")
        await stack.generate(
            stack.request(
                "abc",
                temperature=0.5,
                top_p=0.9,
                top_k=40,
                min_p=0.05,
                seed=2**64 - 1,
                presence_penalty=0.25,
                frequency_penalty=-0.5,
                repetition_penalty=1.25,
                logit_bias={7: -1.5, 3: 2.0},
                min_tokens=2,
                max_tokens=12,
                stop_token_ids=[stop_token_id],
            )
        )
        sampling = stack.verify.requests[0].items[0].sampling
        drafted = [item for r in stack.draft.requests for item in r.items if item.max_draft_tokens]
        assert drafted[0].sampling == sampling
        assert sampling.temperature == 0.5
        assert sampling.top_p == pytest.approx(0.9)
        assert sampling.top_k == 40
        assert sampling.min_p == pytest.approx(0.05)
        assert sampling.seed == 2**64 - 1
        assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.25, -0.5)
        assert sampling.repetition_penalty == 1.25
        assert unpack(sampling.logit_bias_token_ids) == [3, 7]
        assert len(sampling.logit_bias_values) == 8
        assert unpack(sampling.suppressed_token_ids) == sorted(
            {*stack.tokenizer.eos_token_ids, stop_token_id}
        )
        assert (sampling.prompt_length, sampling.suppress_below_length) == (3, 5)


async def test_the_precision_that_was_asked_for_reaches_the_target(stack: Stack) -> None:
    await stack.generate(stack.request(max_tokens=3, precision=types_pb2.PRECISION_FULL))
    await stack.generate(stack.request(max_tokens=3))
    precisions = {item.precision for request in stack.verify.requests for item in request.items}
    assert precisions == {types_pb2.PRECISION_FULL, types_pb2.PRECISION_DEFAULT}


async def test_speculation_can_be_switched_off_by_request(make_stack: StackFactory) -> None:
    async with make_stack(**WITH_DRAFTS) as stack:
        answer = await stack.generate(stack.request(max_tokens=10, max_draft_tokens=0))
        speculation = answer.finished.speculation
        assert (speculation.drafted_tokens, speculation.rounds) == (0, 10)
        assert not speculation.active
        assert speculation.inactive_reason == "disabled by request"
        assert stack.draft.requests == []


async def test_drafts_are_bounded_by_the_request(make_stack: StackFactory) -> None:
    async with make_stack(**WITH_DRAFTS) as stack:
        await stack.generate(stack.request(max_tokens=20, max_draft_tokens=2))
        asked = {item.max_draft_tokens for r in stack.draft.requests for item in r.items}
        assert max(asked) == 2


async def test_the_drafter_reads_the_prompt_beside_the_target(make_stack: StackFactory) -> None:
    async with make_stack(**WITH_DRAFTS) as stack:
        prompt = "a long prompt, " * 4
        await stack.generate(stack.request(prompt, max_tokens=12))
        first = next(item for r in stack.draft.requests for item in r.items)
        assert (first.max_draft_tokens, len(unpack(first.token_ids))) == (0, len(prompt))
        drafting = [item for r in stack.draft.requests for item in r.items if item.max_draft_tokens]
        assert all(len(unpack(item.token_ids)) <= K for item in drafting)


async def test_without_a_draft_service_decoding_is_plain_and_says_so(make_stack: StackFactory) -> None:
    async with make_stack(with_draft=False) as stack:
        request = stack.request(max_tokens=10)
        answer = await stack.generate(request)
        assert answer.token_ids == stack.expected(request)
        assert answer.finished.speculation.inactive_reason == "no draft service"
        info = await stack.stub.GetServerInfo(scheduler_pb2.GetServerInfoRequest())
        assert info.draft_status == "absent"
        assert not info.HasField("draft")


async def test_the_parts_of_the_time_add_up(make_stack: StackFactory) -> None:
    async with make_stack(**WITH_DRAFTS) as stack:
        requests = [stack.request(f"{i} prompt", max_tokens=30) for i in range(4)]
        for answer in await asyncio.gather(*(stack.generate(request) for request in requests)):
            t = answer.finished.timings
            parts = (t.queue, t.prefill, t.draft, t.verify, t.network, t.scheduler)
            total = sum(part.ToNanoseconds() for part in parts)
            assert total == pytest.approx(t.e2e.ToNanoseconds(), rel=0.01)
            assert all(part.ToNanoseconds() > 0 for part in (t.draft, t.verify, t.network, t.scheduler))
            assert t.time_to_first_token.ToNanoseconds() < t.e2e.ToNanoseconds()


async def test_the_server_says_what_it_serves(stack: Stack) -> None:
    info = await stack.stub.GetServerInfo(scheduler_pb2.GetServerInfoRequest())
    assert info.protocol_version == 1
    assert info.target.tokenizer_hash == info.draft.tokenizer_hash == stack.tokenizer.hash
    assert (info.variant, info.draft_status) == ("w4", "ready")
    assert info.context_length == stack.verify.context_length
    assert (info.max_running_requests, info.max_waiting_requests, info.max_draft_tokens) == (16, 256, 8)


async def test_metrics_agree_with_the_answers(make_stack: StackFactory) -> None:
    async with make_stack(**WITH_DRAFTS) as stack:
        requests = [stack.request(f"{i} prompt", max_tokens=9 + i) for i in range(5)]
        answers = await asyncio.gather(*(stack.generate(request) for request in requests))
        finished = [answer.finished for answer in answers]
        generated = sum(f.usage.completion_tokens for f in finished)
        drafted = sum(f.speculation.drafted_tokens for f in finished)
        accepted = sum(f.speculation.accepted_tokens for f in finished)
        assert stack.metric("generation_tokens_total") == generated
        assert stack.metric("prompt_tokens_total") == sum(f.usage.prompt_tokens for f in finished)
        assert stack.metric("spec_decode_num_draft_tokens_total") == drafted
        assert stack.metric("spec_decode_num_accepted_tokens_total") == accepted
        by_position = [
            stack.metric("spec_decode_num_accepted_tokens_per_pos_total", position=str(i)) for i in range(K)
        ]
        assert sum(by_position) == accepted
        assert by_position == sorted(by_position, reverse=True)
        assert stack.metric("request_success_total", finished_reason="length") == 5
        queried = stack.metric("prefix_cache_queries_total")
        assert queried == sum(f.usage.prompt_tokens for f in finished)
        assert stack.metric("prefix_cache_hits_total") == sum(f.usage.cached_tokens for f in finished)
        steps = (await stack.stub.GetLoad(scheduler_pb2.GetLoadRequest())).step_count
        assert stack.metric("iteration_tokens_total_count") == steps
        assert stack.metric("iteration_tokens_total_sum") >= queried + generated - 5
        assert 0 <= stack.metric("last_step_age_seconds") < 60
        for name in (
            "time_to_first_token",
            "e2e_request_latency",
            "request_queue_time",
            "request_decode_time",
            "request_inference_time",
        ):
            assert stack.metric(f"{name}_seconds_count") == 5
        assert stack.metric("inter_token_latency_seconds_count") == sum(
            f.speculation.rounds - 1 for f in finished
        )
        await stack.idle()
        assert stack.metric("num_requests_running") == stack.metric("num_requests_waiting") == 0
        assert (stack.metric("draft_up"), stack.metric("verify_up")) == (1, 1)
