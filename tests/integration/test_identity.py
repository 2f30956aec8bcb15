"""Through all three real services, the output depends on the request alone."""

import asyncio

import pytest

from spearhead.client import SamplingParams, Speculation

PROMPT = [(11 * i) % 300 for i in range(41)]
TOKENS = 48

LAWS = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 0.8, "seed": 5},
    "everything": {
        "temperature": 0.8,
        "seed": 6,
        "top_p": 0.95,
        "top_k": 50,
        "min_p": 0.01,
        "presence_penalty": 0.4,
        "frequency_penalty": 0.3,
        "repetition_penalty": 1.1,
        "logit_bias": {7: 2.0, 9: -3.0},
        "min_tokens": 12,
    },
}


def options(law, *, drafts=None, prompt=PROMPT, tokens=TOKENS, **changes):
    return {
        "token_ids": prompt,
        "sampling": SamplingParams(**(LAWS[law] | {"max_tokens": tokens, "ignore_eos": True} | changes)),
        "speculation": Speculation(max_draft_tokens=drafts),
    }


@pytest.mark.parametrize(
    ("draft", "draft_seed"), [("model", 0), ("model", 1), ("ngram", 0), ("layer_skip", 0)]
)
async def test_no_drafter_and_no_draft_length_changes_the_output(real_stack, draft, draft_seed):
    policy = {"kind": "static", "static_draft_tokens": 4}
    async with real_stack(draft=draft, draft_seed=draft_seed, policy=policy, num_hidden_layers=4) as stack:
        for law in LAWS:
            plain = await stack.client.generate_text(**options(law, drafts=0))
            assert plain.finished.speculation.drafted_tokens == 0
            for drafts in (1, 2, 3, 5, 8, None):
                drafted = await stack.client.generate_text(**options(law, drafts=drafts))
                assert drafted.token_ids == plain.token_ids
                assert drafted.text == plain.text
        await stack.idle()


async def test_a_request_in_a_full_mixed_batch_with_preemption_gets_what_it_gets_alone(real_stack):
    policy = {"kind": "static", "static_draft_tokens": 3, "static_step_tokens": 24}
    async with real_stack(policy=policy, pages=28, limits={"max_running_requests": 8}) as stack:
        requests = [
            options(law, drafts=index % 5, prompt=PROMPT[index:] + [index] * (index * 3), seed=index)
            for index, law in enumerate([*LAWS] * 4)
        ]
        alone = [await stack.client.generate_text(**request) for request in requests]
        together = await asyncio.gather(*(stack.client.generate_text(**request) for request in requests))
        assert [answer.token_ids for answer in together] == [answer.token_ids for answer in alone]
        assert sum(answer.finished.timings.preemptions for answer in together) > 0
        await stack.idle()


async def test_chunk_sizes_and_cached_prefixes_change_nothing(real_stack):
    answers = []
    for chunk in (16, 32, 256):
        async with real_stack(policy={"kind": "static", "static_step_tokens": chunk}) as stack:
            first = await stack.client.generate_text(**options("everything", prompt=PROMPT * 4))
            again = await stack.client.generate_text(**options("everything", prompt=PROMPT * 4))
            assert first.finished.usage.cached_tokens == 0
            assert again.finished.usage.cached_tokens == 160
            answers += [first.token_ids, again.token_ids]
    assert len(set(answers)) == 1


@pytest.mark.parametrize("law", ["greedy", "temperature"])
async def test_a_draft_of_the_targets_own_weights_is_accepted_without_exception(real_stack, law):
    policy = {"kind": "static", "static_draft_tokens": 4}
    async with real_stack(variant="fp16", policy=policy) as stack:
        answer = await stack.client.generate_text(**options(law, tokens=500))
        speculation = answer.finished.speculation
        assert len(answer.token_ids) == 500
        assert speculation.drafted_tokens > 350
        assert speculation.accepted_tokens == speculation.drafted_tokens


async def test_logprobs_are_those_of_plain_decoding(real_stack):
    async with real_stack(policy={"kind": "static", "static_draft_tokens": 4}) as stack:
        plain = await stack.client.generate_text(**options("temperature", drafts=0, logprobs=3))
        drafted = await stack.client.generate_text(**options("temperature", logprobs=3))
        assert drafted.finished.speculation.drafted_tokens > 0
        assert len(drafted.logprobs) == TOKENS
        assert drafted.logprobs == plain.logprobs


async def test_full_precision_on_request_equals_a_full_precision_server(real_stack):
    async with real_stack(variant="fp16") as stack:
        reference = await stack.client.generate_text(**options("temperature"))
    async with real_stack(variant="w4") as stack:
        full, plain = await asyncio.gather(
            stack.client.generate_text(**options("temperature"), precision="full"),
            stack.client.generate_text(**options("temperature")),
        )
    assert full.token_ids == reference.token_ids
    assert plain.token_ids != reference.token_ids
