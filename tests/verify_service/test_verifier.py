"""Verification emits the target's own samples: identity, acceptance, failures."""

import dataclasses
import random

import numpy as np
import pytest

from spearhead.model.engine import Failure, FailureReason
from verify_service.verifier import VerifyItem

PROMPT = [(11 * i) % 300 for i in range(37)]
COUNT = 24
EOS = 2


def all_filters(**changes):
    """Every transform at once."""
    return {
        "temperature": 0.8,
        "top_p": 0.95,
        "top_k": 40,
        "min_p": 0.01,
        "seed": 77,
        "presence_penalty": 0.3,
        "frequency_penalty": 0.2,
        "repetition_penalty": 1.1,
        "bias_token_ids": np.array([5, 9]),
        "bias_values": np.array([1.5, -2.0], np.float32),
        "suppressed_token_ids": np.array([EOS]),
        "suppress_below_length": len(PROMPT) + 10,
        "prompt_length": len(PROMPT),
    } | changes


LAWS = [{}, {"temperature": 0.8, "seed": 3}, all_filters()]


def nonsense(tokens, count):
    return [random.Random(len(tokens)).randrange(320) for _ in range(count)]


def only_eos(tokens, count):
    return [EOS] * count


@pytest.mark.parametrize("law", LAWS, ids=["greedy", "temperature", "all filters"])
@pytest.mark.parametrize("variant", ["fp16", "w4"])
def test_output_is_the_same_for_every_draft_length_and_drafter(make_verifier, loop, law, variant):
    verifier = make_verifier(variant=variant)
    (expected,) = loop.run(verifier, [loop.Request("plain", PROMPT, loop.sampling(**law))], COUNT)

    def perfect(tokens, count):
        done = len(tokens) - len(PROMPT)
        return expected[done : done + count]

    def half_right(tokens, count):
        drafts = perfect(tokens, count)
        return [*drafts[: count // 2], *nonsense(tokens, count)][:count]

    for count in range(1, 9):
        for drafter in (perfect, half_right) if count % 2 else (nonsense, only_eos, half_right):
            request = loop.Request((count, drafter), PROMPT, loop.sampling(**law), drafter, count)
            assert loop.run(verifier, [request], COUNT) == [expected]
            assert request.accepted <= request.drafted
            assert request.accepted + request.rounds == len(request.output)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_output_is_the_same_in_a_full_mixed_batch_with_chunks_and_preemption(make_verifier, loop, dtype):
    verifier = make_verifier(dtype=dtype, pages=160)
    laws = [loop.sampling(**(law | {"seed": seed})) for seed in range(4) for law in LAWS]
    prompts = [[(seed * 13 + i * 7) % 300 for i in range(5 + 9 * seed)] for seed in range(len(laws))]
    alone = [
        loop.run(verifier, [loop.Request(("alone", i), prompt, law)], COUNT)[0]
        for i, (prompt, law) in enumerate(zip(prompts, laws, strict=True))
    ]
    requests = [
        loop.Request(i, prompt, law, nonsense if i % 3 else only_eos, i % 5, chunk=7 + i)
        for i, (prompt, law) in enumerate(zip(prompts, laws, strict=True))
    ]

    def preempt(step, active):
        if step % 6 == 5:
            active[step % len(active)].restart()

    assert loop.run(verifier, requests, COUNT, preempt) == alone


def test_drafts_from_the_targets_own_samples_are_all_accepted(make_verifier, loop):
    verifier = make_verifier()
    law = loop.sampling(temperature=0.8, seed=5)
    (expected,) = loop.run(verifier, [loop.Request("plain", PROMPT, law)], 180)

    def perfect(tokens, count):
        done = len(tokens) - len(PROMPT)
        return expected[done : done + count]

    request = loop.Request("drafted", PROMPT, law, perfect, 4)
    loop.run(verifier, [request], 150)
    assert request.drafted > 100
    assert request.accepted == request.drafted


def test_penalties_count_the_drafts_before_a_position(make_verifier, loop):
    verifier = make_verifier()
    law = loop.sampling(temperature=0.0, frequency_penalty=2.0, prompt_length=len(PROMPT))
    (expected,) = loop.run(verifier, [loop.Request("plain", PROMPT, law)], COUNT)

    def perfect(tokens, count):
        done = len(tokens) - len(PROMPT)
        return expected[done : done + count]

    request = loop.Request("drafted", PROMPT, law, perfect, 6)
    assert loop.run(verifier, [request], COUNT) == [expected]
    assert request.accepted == request.drafted


def test_logprobs_are_the_same_with_and_without_speculation(make_verifier, loop):
    verifier = make_verifier()
    law = loop.sampling(temperature=0.8, seed=1)
    plain = loop.Request("plain", PROMPT, law, logprob_count=5)
    loop.run(verifier, [plain], COUNT)
    expected = plain.output

    def perfect(tokens, count):
        done = len(tokens) - len(PROMPT)
        return expected[done : done + count]

    drafted = loop.Request("drafted", PROMPT, law, perfect, 4, logprob_count=5)
    loop.run(verifier, [drafted], COUNT)
    for ours, theirs in zip(drafted.details[:COUNT], plain.details, strict=True):
        assert ours.logprob == theirs.logprob
        assert ours.logprob < 0
        assert ours.top_token_ids.tolist() == theirs.top_token_ids.tolist()


def test_switching_the_variant_recomputes_and_equals_the_new_variant(make_verifier, loop):
    verifier = make_verifier(variant="w4")
    law = loop.sampling(temperature=0.8, seed=1)
    request = loop.Request("a", PROMPT, law)
    loop.run(verifier, [request], 10)
    verifier.set_variant("fp16")
    (missed,) = verifier.step([request.item()]).outcomes
    assert missed.reason is FailureReason.CACHE_MISS
    request.restart()
    loop.run(verifier, [request], 30)
    fresh = loop.Request("b", request.tokens[: len(PROMPT) + 10], law)
    assert loop.run(verifier, [fresh], 20)[0] == request.output[10:30]


def test_full_precision_items_run_beside_the_quantised_ones(make_verifier, loop):
    quantised = make_verifier(variant="w4")
    law = loop.sampling(temperature=0.8, seed=4)
    (reference,) = loop.run(make_verifier(variant="fp16"), [loop.Request("r", PROMPT, law)], COUNT)
    full = loop.Request("full", PROMPT, law, full_precision=True)
    plain = loop.Request("plain", PROMPT, law)
    outputs = loop.run(quantised, [plain, full], COUNT)
    assert outputs[1] == reference
    assert outputs[0] != reference


def test_rejected_drafts_never_reach_the_prefix_cache(make_verifier, loop):
    verifier = make_verifier()
    drafts = nonsense([1] * 8, 16) + nonsense([2] * 9, 16)
    request = loop.Request("hostile", PROMPT, loop.sampling(), lambda tokens, count: drafts, 32)
    loop.run(verifier, [request], 2)
    assert request.drafted == 32
    assert request.accepted < 16
    seen = PROMPT + request.output[:1] + drafts
    verifier.engine.release(request.key)
    again = loop.Request("again", [*seen, 5], loop.sampling())
    outcome = verifier.step([again.item()]).outcomes[0]
    assert outcome.cached_token_count <= len(PROMPT) + 1 + request.accepted


def test_drafts_that_a_bound_on_tokens_let_through_are_no_part_of_the_sequence(make_verifier, loop):
    verifier = make_verifier()
    request = loop.Request("a", PROMPT[:20], loop.sampling())
    loop.run(verifier, [request], 1)
    item = dataclasses.replace(
        request.item(),
        token_ids=[request.tokens[-1], *nonsense([3], 1) * 30],
        draft_count=30,
        max_compute_tokens=14,
    )
    (outcome,) = verifier.step([item]).outcomes
    assert (outcome.computed_length, outcome.emitted) == (21, ())
    assert outcome.computed_token_count == 14
    assert verifier.engine.tokens("a") == request.tokens


def test_refused_drafts_count_as_computed(make_verifier, loop):
    verifier = make_verifier()
    request = loop.Request("a", PROMPT, loop.sampling(), only_eos, 4)
    loop.run(verifier, [request], 1)
    (outcome,) = verifier.step([request.item()]).outcomes
    assert (outcome.accepted_count, outcome.computed_token_count) == (0, 5)


def test_a_thousand_mixed_aborts_leave_acceptance_as_it_was(make_verifier, loop):
    verifier = make_verifier(pages=48)
    law = loop.sampling(temperature=0.8, seed=5)
    (expected,) = loop.run(verifier, [loop.Request("plain", PROMPT, law)], 60)
    chance = random.Random(3)

    def perfect(tokens, count):
        done = len(tokens) - len(PROMPT)
        return expected[done : done + count]

    for index in range(1000):
        drafter = chance.choice([perfect, nonsense, only_eos])
        request = loop.Request(index, PROMPT[: chance.randrange(1, 37)], law, drafter, 4, chunk=9)
        for _ in range(chance.randrange(1, 4)):
            outcome = verifier.step([request.item()]).outcomes[0]
            request.apply(outcome)
        verifier.engine.release(index)
    verifier.engine.check_integrity()
    request = loop.Request("drafted", PROMPT, law, perfect, 4)
    loop.run(verifier, [request], 50)
    assert request.accepted == request.drafted > 30


def test_non_finite_logits_fail_the_item_and_keep_the_committed_tokens(make_verifier, loop):
    verifier = make_verifier()
    request = loop.Request("a", PROMPT, loop.sampling())
    loop.run(verifier, [request], 3)
    embedding = verifier.engine.variants["fp16"].embedding
    last = request.tokens[-1]
    saved = embedding[last].clone()
    embedding[last] = float("nan")
    (failed,) = verifier.step([request.item()]).outcomes
    embedding[last] = saved
    assert isinstance(failed, Failure)
    assert failed.reason is FailureReason.NON_FINITE
    loop.run(verifier, [request], 6)
    assert request.output[:6] == loop.run(verifier, [loop.Request("b", PROMPT, loop.sampling())], 6)[0]


def test_a_chunk_without_sampling_emits_nothing(make_verifier):
    verifier = make_verifier()
    item = VerifyItem(
        key="a",
        epoch=0,
        committed_length=0,
        token_ids=PROMPT,
        draft_count=0,
        max_compute_tokens=10,
        sampling=None,
        full_precision=False,
        logprob_count=None,
    )
    (outcome,) = verifier.step([item]).outcomes
    assert (outcome.computed_length, outcome.emitted) == (10, ())


def test_releases_come_before_the_items(make_verifier, loop):
    verifier = make_verifier(pages=9)
    big = loop.Request("big", [1] * 130, loop.sampling())
    loop.run(verifier, [big], 1)
    step = verifier.step([loop.Request("next", [2] * 130, loop.sampling()).item()], released=["big"])
    assert not isinstance(step.outcomes[0], Failure)
