from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from spearhead.quant.evaluation import LookupDrafter
from spearhead.quant.evaluation.drafters import Replay, matching, replay
from spearhead.quant.evaluation.sampling_law import SamplingLaw

OUTPUT = [9, 9, 1, 2, 3, 4, 5, 6, 7]  # the prompt is 9 9


def rounds_of_a_scheduler(output: Sequence[int], start: int, picks: Sequence[int], k: int) -> Replay:
    """The plain loop: draft one token after the other, verify, go on."""
    position, rounds, drafted, accepted = start, 0, 0, 0
    while position < len(output):
        drafts = [picks[i - start] for i in range(position, min(position + k, len(output) - 1))]
        rounds, drafted = rounds + 1, drafted + len(drafts)
        for draft in drafts:
            if draft != output[position]:
                break
            position, accepted = position + 1, accepted + 1
        position += 1  # the verifier's own token
    return Replay(tokens=len(output) - start, rounds=rounds, drafted=drafted, accepted=accepted)


@given(
    output=st.lists(st.integers(0, 2), min_size=1, max_size=30),
    picks=st.lists(st.integers(0, 2), min_size=30, max_size=30),
    k=st.integers(1, 6),
)
def test_a_replay_is_what_a_scheduler_would_count(output: list[int], picks: list[int], k: int) -> None:
    found = replay(output, 0, lambda position, count: picks[position : position + count], k)
    assert found == rounds_of_a_scheduler(output, 0, picks, k)
    assert found.tokens == found.accepted + found.rounds


def test_a_drafter_that_is_always_right_saves_every_step_it_can() -> None:
    found = replay(OUTPUT, 2, lambda position, count: OUTPUT[position : position + count], 2)
    assert found == Replay(tokens=7, rounds=3, drafted=4, accepted=4)


def test_a_drafter_without_drafts_costs_nothing() -> None:
    assert replay(OUTPUT, 2, lambda position, count: (), 5) == Replay(
        tokens=7, rounds=7, drafted=0, accepted=0
    )


def test_a_lookup_sees_the_tokens_before_its_position_only() -> None:
    seen = []

    def look_up(tokens: Sequence[int], count: int) -> Sequence[int]:
        seen.append((list(tokens), count))
        return [3]

    law = SamplingLaw(temperature=1.0, seed=0, vocab_size=10)
    (propose,) = LookupDrafter(name="look-up", lookup=look_up).proposals(torch.tensor([OUTPUT]), 2, law)
    assert propose(4, 3) == [3]
    assert seen == [([9, 9, 1, 2], 3)]


@pytest.mark.parametrize(("one", "other", "equal"), [([], [1], 0), ([1, 2], [1, 3], 1), ([1], [1, 2], 1)])
def test_matching_counts_leading_equal_tokens(one: list[int], other: list[int], equal: int) -> None:
    assert matching(one, other) == equal
