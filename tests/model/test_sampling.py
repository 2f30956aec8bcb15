"""The sampling law: each transform against its definition, the whole against the exact distribution."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from spearhead.model.noise import gumbel_noise
from spearhead.model.sampling import (
    History,
    SamplingParameters,
    logprobs,
    processed_distribution,
)
from spearhead.model.sampling import sample as sample_after

VOCABULARY = 20


def parameters(**changes):
    empty = {
        "bias_token_ids": np.empty(0, np.int64),
        "bias_values": np.empty(0, np.float32),
        "suppressed_token_ids": np.empty(0, np.int64),
    }
    return SamplingParameters(**(empty | changes))


def sample(row, given_parameters, tokens, **options):
    return sample_after(row, given_parameters, History(tokens, given_parameters), **options)


def logits(seed=0, size=VOCABULARY, scale=2.0):
    return (np.random.default_rng(seed).standard_normal(size) * scale).astype(np.float32)


def softmax(values):
    weights = np.exp(values - values.max())
    return weights / weights.sum()


def law(row, given_parameters, history=()):
    ids, probabilities = processed_distribution(
        row.copy(), given_parameters, History(list(history), given_parameters)
    )
    full = np.zeros(len(row))
    full[ids] = probabilities
    return full


def test_greedy_takes_the_largest_logit_and_ties_go_to_the_lowest_id():
    row = np.array([1, 3, 3, 2], np.float32)
    assert sample(row, parameters(temperature=0), []).token_id == 1


def test_margin_is_the_gap_between_the_two_best_logits():
    assert sample(np.array([1, 5, 3.5], np.float32), parameters(temperature=0), []).margin == 1.5


def test_sampling_leaves_the_logits_as_they_were():
    row = logits()
    before = row.copy()
    sample(row, parameters(temperature=0.7, top_k=3, repetition_penalty=2.0), [1, 2, 3])
    np.testing.assert_array_equal(row, before)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_row_with_nan_or_infinity_is_reported(bad):
    row = logits()
    row[3] = bad
    assert not sample(row, parameters(), []).finite


def test_temperature_divides_the_logits():
    row = logits()
    np.testing.assert_allclose(law(row, parameters(temperature=0.5)), softmax(row / 0.5), rtol=1e-5)


def test_top_k_keeps_the_k_most_likely():
    row = logits()
    kept = np.sort(np.argsort(-row)[:5])
    assert np.flatnonzero(law(row, parameters(top_k=5))).tolist() == kept.tolist()


def test_top_p_keeps_the_smallest_set_that_reaches_the_mass():
    row = logits()
    order = np.argsort(-row)
    mass = np.cumsum(softmax(row)[order])
    kept = order[: int(np.searchsorted(mass, 0.7)) + 1]
    assert np.flatnonzero(law(row, parameters(top_p=0.7))).tolist() == sorted(kept.tolist())


def test_top_p_reaches_past_the_first_guess_on_a_flat_distribution():
    row = np.zeros(5000, np.float32)
    assert (law(row, parameters(top_p=0.5)) > 0).sum() == 2500


def test_min_p_removes_tokens_below_its_share_of_the_best():
    row = logits()
    probabilities = softmax(row)
    expected = np.flatnonzero(probabilities >= 0.2 * probabilities.max())
    assert np.flatnonzero(law(row, parameters(min_p=0.2))).tolist() == expected.tolist()


def test_penalties_follow_their_definitions():
    row = logits()
    history = [1, 1, 2, 5, 5, 5]  # prompt: 1 1, output: 2 5 5 5
    expected = row.copy()
    for token in (1, 2, 5):
        expected[token] = expected[token] / 1.5 if expected[token] > 0 else expected[token] * 1.5
    for token, count in ((2, 1), (5, 3)):
        expected[token] -= 0.3 + 0.2 * count
    given_parameters = parameters(
        repetition_penalty=1.5, presence_penalty=0.3, frequency_penalty=0.2, prompt_length=2
    )
    np.testing.assert_allclose(law(row, given_parameters, history), softmax(expected), rtol=1e-5)


def test_logit_bias_is_added_before_everything():
    row = logits()
    biased = row.copy()
    biased[[3, 7]] += [5, -100]
    given_parameters = parameters(
        bias_token_ids=np.array([3, 7]), bias_values=np.array([5, -100], np.float32)
    )
    np.testing.assert_allclose(law(row, given_parameters), softmax(biased), rtol=1e-5, atol=1e-12)


def test_suppressed_tokens_cannot_be_drawn_until_the_length_is_reached():
    row = logits()
    best = int(row.argmax())
    given_parameters = parameters(
        temperature=0, suppressed_token_ids=np.array([best]), suppress_below_length=4
    )
    assert sample(row, given_parameters, [0, 1, 2]).token_id != best
    assert sample(row, given_parameters, [0, 1, 2, 3]).token_id == best


@pytest.mark.parametrize(
    "changes",
    [
        {"temperature": 1.0},
        {"temperature": 0.3, "top_p": 0.5},
        {"temperature": 1.5, "top_k": 8, "top_p": 0.9, "min_p": 0.02},
        {"temperature": 0.8, "repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.5},
    ],
)
def test_draws_follow_the_processed_distribution(changes):
    """Chi-square on 40,000 draws over positions; the seed is fixed, a random one would fail 1 in 10,000."""
    row, history = logits(seed=3), [1, 2, 2, 9]
    given_parameters = parameters(seed=5, prompt_length=2, **changes)
    expected = law(row, given_parameters, history)
    counts = np.zeros(VOCABULARY)
    for draw in range(40_000):
        changed = parameters(seed=draw, prompt_length=2, **changes)
        counts[sample(row, changed, history).token_id] += 1
    possible = expected > 0
    assert counts[~possible].sum() == 0
    common = expected * 40_000 >= 5
    observed = np.append(counts[common], counts[~common].sum())
    wanted = np.append(expected[common], expected[~common].sum()) * 40_000
    if wanted[-1] < 5:
        observed, wanted = observed[:-1], wanted[:-1] * observed[:-1].sum() / wanted[:-1].sum()
    if len(observed) > 1:
        assert stats.chisquare(observed, wanted).pvalue > 1e-4


def test_a_wrong_law_is_caught_by_the_same_chi_square():
    row = logits(seed=3)
    counts = np.zeros(VOCABULARY)
    for draw in range(5_000):
        counts[sample(row, parameters(seed=draw), []).token_id] += 1
    wrong = law(row, parameters(temperature=1.3))
    assert stats.chisquare(counts, wrong * 5_000).pvalue < 1e-4


@given(st.integers(0, 2**64 - 1), st.integers(0, 10_000), st.integers(0, 1000))
def test_skipping_hopeless_tokens_never_changes_the_winner(seed, position, row_seed):
    row = logits(seed=row_seed, size=300, scale=6.0)
    history = [0] * position
    drawn = sample(row, parameters(temperature=0.8, seed=seed), history)
    scaled = (row - row.max()) / np.float32(0.8)
    assert drawn.token_id == int((scaled + gumbel_noise(seed, position, np.arange(300))).argmax())


def test_the_probability_is_that_of_the_processed_distribution():
    row = logits()
    given_parameters = parameters(temperature=0.9, top_k=6, seed=11)
    drawn = sample(row, given_parameters, [4], want_probability=True)
    assert drawn.probability == pytest.approx(law(row, given_parameters, [4])[drawn.token_id], rel=1e-5)


def test_logprobs_are_of_the_unmodified_distribution_best_first():
    row = logits()
    details = logprobs(row, 4, 3)
    expected = np.log(softmax(row.astype(np.float64)))
    assert details.logprob == pytest.approx(expected[4], abs=1e-5)
    assert details.top_token_ids.tolist() == np.argsort(-row)[:3].tolist()
    np.testing.assert_allclose(details.top_logprobs, np.sort(expected)[::-1][:3], atol=1e-5)
    assert details.rank == 1 + int((row > row[4]).sum())


def test_asking_for_no_alternatives_still_gives_the_tokens_own_logprob():
    details = logprobs(logits(), 2, 0)
    assert len(details.top_token_ids) == 0
    assert math.isfinite(details.logprob)


@pytest.mark.parametrize("temperature", [1e-45, 1e-38, 1e-20, 1e-3])
def test_a_tiny_temperature_is_greedy_and_overflows_nothing(temperature):
    row = np.array([4, 1, 9, 21], np.float32)
    for changes in ({}, {"top_p": 0.5}, {"min_p": 0.1}, {"top_k": 2}):
        assert sample(row, parameters(temperature=temperature, seed=9, **changes), [1]).token_id == 3


def test_a_token_that_is_biased_twice_gets_both_biases():
    row = logits()
    expected = row.copy()
    expected[3] += 3
    given_parameters = parameters(bias_token_ids=np.array([3, 3]), bias_values=np.array([1, 2], np.float32))
    np.testing.assert_allclose(law(row, given_parameters), softmax(expected), rtol=1e-5)


def test_a_history_that_grows_equals_one_made_at_once():
    row = logits()
    given_parameters = parameters(
        repetition_penalty=1.4, frequency_penalty=0.5, presence_penalty=0.2, prompt_length=2
    )
    grown = History([1, 2, 3], given_parameters)
    for token in (3, 7, 1):
        grown.append(token)
    at_once = History([1, 2, 3, 3, 7, 1], given_parameters)
    assert grown.length == at_once.length
    for one, other in zip(
        processed_distribution(row, given_parameters, grown),
        processed_distribution(row, given_parameters, at_once),
        strict=True,
    ):
        np.testing.assert_array_equal(one, other)
