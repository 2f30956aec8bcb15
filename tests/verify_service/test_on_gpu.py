"""On a GPU the emitted tokens are the same whoever drafts, as on the processor."""

import random

import numpy as np
import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="verifies on a CUDA device"),
]

PROMPT = [(11 * i) % 300 for i in range(37)]
COUNT = 36
EVERYTHING = {
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
    "suppressed_token_ids": np.array([2]),
    "suppress_below_length": len(PROMPT) + 10,
    "prompt_length": len(PROMPT),
}


@pytest.mark.parametrize("law", [{}, {"temperature": 0.8, "seed": 3}, EVERYTHING], ids=["greedy", "t", "all"])
@pytest.mark.parametrize("variant", ["fp16", "w4"])
def test_output_is_the_same_for_every_draft_length_drafter_and_chunk(make_verifier, loop, law, variant):
    verifier = make_verifier(variant=variant, dtype="bfloat16", device="cuda", pages=192)
    (expected,) = loop.run(verifier, [loop.Request("plain", PROMPT, loop.sampling(**law))], COUNT)

    def half_right(tokens, count):
        done = len(tokens) - len(PROMPT)
        wrong = [random.Random(len(tokens)).randrange(320) for _ in range(count)]
        return [*expected[done : done + count // 2], *wrong][:count]

    requests = [
        loop.Request(k, PROMPT, loop.sampling(**law), drafter=half_right, draft_count=k, chunk=k + 3)
        for k in (1, 2, 5, 9, 16)
    ]
    requests.append(loop.Request("long", PROMPT * 5, loop.sampling(), logprob_count=3))
    outputs = loop.run(verifier, requests, COUNT)
    assert all(output == expected for output in outputs[:-1])
    assert requests[3].accepted > 0
    assert all(len(one.top_token_ids) == 3 for one in requests[-1].details)
    assert requests[-1].details[0].rank == 1


def test_weights_that_overflow_fail_the_item_and_nothing_else(make_verifier, loop):
    verifier = make_verifier(dtype="bfloat16", device="cuda")
    verifier.engine.variants["fp16"].embedding[7] = float("inf")
    outcomes = verifier.step(
        [
            loop.Request("good", PROMPT[:5], loop.sampling()).item(),
            loop.Request("bad", [7, 8], loop.sampling()).item(),
        ]
    ).outcomes
    assert outcomes[0].emitted
    assert outcomes[1].reason.value == "non-finite logits"
    verifier.engine.check_integrity()
