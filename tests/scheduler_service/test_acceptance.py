"""Acceptance estimates: between 0 and 1, towards the truth, and forgetful."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_service.acceptance import AcceptanceConfig, AcceptanceTracker, Evidence, estimate, observe

UNTIMED = settings(deadline=None)  # How long an example takes is no claim of these tests.

CONFIG = AcceptanceConfig()


def estimate_of(tracker: AcceptanceTracker, row: int, step: int) -> float:
    return float(tracker.estimates(np.array([row]), step)[0])


rounds = st.lists(
    st.integers(0, 16).flatmap(lambda k: st.tuples(st.just(k), st.integers(0, k), st.integers(0, 1000))),
    max_size=40,
)


@UNTIMED
@given(rounds)
def test_estimates_are_probabilities_and_counts_agree(history: list[tuple[int, int, int]]) -> None:
    evidence, step = Evidence(), 0
    for drafted, accepted, gap in history:
        step += gap
        evidence = observe(evidence, drafted=drafted, accepted=accepted, step=step, config=CONFIG)
        assert 0 <= evidence.accepted <= evidence.trials + 1e-9
        assert 0 < estimate(evidence, prior=0.7, step=step, config=CONFIG) < 1


@UNTIMED
@given(rounds, st.integers(1, 8))
def test_acceptance_raises_and_rejection_lowers_the_estimate(
    history: list[tuple[int, int, int]], drafted: int
) -> None:
    evidence, step = Evidence(), 0
    for k, accepted, gap in history:
        step += gap
        evidence = observe(evidence, drafted=k, accepted=accepted, step=step, config=CONFIG)
    before = estimate(evidence, prior=0.5, step=step, config=CONFIG)
    better = observe(evidence, drafted=drafted, accepted=drafted, step=step, config=CONFIG)
    worse = observe(evidence, drafted=drafted, accepted=0, step=step, config=CONFIG)
    assert estimate(better, prior=0.5, step=step, config=CONFIG) >= before - 1e-9
    assert estimate(worse, prior=0.5, step=step, config=CONFIG) <= before + 1e-9


def test_drafts_after_a_rejected_one_are_no_evidence() -> None:
    few = observe(Evidence(), drafted=3, accepted=2, step=1, config=CONFIG)
    many = observe(Evidence(), drafted=16, accepted=2, step=1, config=CONFIG)
    assert few == many


@pytest.mark.parametrize("truth", [0.1, 0.5, 0.9])
def test_estimate_approaches_the_true_acceptance(truth: float) -> None:
    # The faded evidence weighs about 92 trials: standard deviation <= 0.052, tolerance > 3.8 of them; the
    # seed is fixed, so the test cannot fail by chance.
    source = random.Random(3)
    tracker = AcceptanceTracker(CONFIG)
    for step in range(400):
        accepted = 0
        while accepted < 4 and source.random() < truth:
            accepted += 1
        tracker.observe(1, drafted=4, accepted=accepted, step=step)
    assert estimate_of(tracker, 1, 400) == pytest.approx(truth, abs=0.2)


def test_new_sequence_is_like_the_others() -> None:
    tracker = AcceptanceTracker(CONFIG)
    for step in range(50):
        tracker.observe(1, drafted=4, accepted=0, step=step)
    assert estimate_of(tracker, 2, 50) == tracker.estimate_all(50) < 0.3


def test_sequence_that_differs_keeps_its_own_estimate() -> None:
    tracker = AcceptanceTracker(CONFIG)
    for step in range(100):
        tracker.observe(1, drafted=4, accepted=4, step=step)
        tracker.observe(2, drafted=4, accepted=0, step=step)
    assert estimate_of(tracker, 1, 100) > 0.9
    assert estimate_of(tracker, 2, 100) < 0.2


def test_idle_steps_lead_back_to_the_prior_so_that_drafting_is_tried_again() -> None:
    tracker = AcceptanceTracker(CONFIG)
    for step in range(100):
        tracker.observe(1, drafted=4, accepted=0, step=step)
    estimates = [estimate_of(tracker, 1, step) for step in (100, 1000, 3000, 10_000)]
    assert estimates == sorted(estimates)
    assert estimates[0] < 0.1
    assert estimates[-1] == pytest.approx(CONFIG.prior, abs=0.01)


def test_step_without_drafts_is_no_evidence() -> None:
    tracker = AcceptanceTracker(CONFIG)
    tracker.observe(1, drafted=0, accepted=0, step=5)
    assert estimate_of(tracker, 1, 5) == pytest.approx(CONFIG.prior)


def test_released_sequence_leaves_only_what_it_taught_about_all() -> None:
    tracker = AcceptanceTracker(CONFIG)
    tracker.observe(1, drafted=4, accepted=0, step=1)
    with pytest.raises(AssertionError, match=r"\[1\]"):
        tracker.check_integrity({2})
    tracker.release(1)
    tracker.release(1)
    tracker.check_integrity(set())
    assert tracker.estimate_all(1) < CONFIG.prior


@pytest.mark.parametrize(("name", "value"), [
    ("prior", 0.0), ("prior", 1.0), ("prior", float("nan")), ("prior_trials", 0.0),
    ("half_life_trials", -1.0), ("idle_half_life_steps", 0.0),
])  # fmt: skip
def test_weights_out_of_range_are_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        AcceptanceConfig(**{name: value})


@UNTIMED
@given(st.lists(st.tuples(st.integers(1, 8), st.integers(0, 8)), max_size=20), st.integers(0, 1000))
def test_the_tracker_estimates_as_the_formula_does(observed: list[tuple[int, int]], later: int) -> None:
    tracker, known = AcceptanceTracker(CONFIG), [Evidence()] * 5
    for step, (drafted, wanted) in enumerate(observed):
        accepted = min(drafted, wanted)
        tracker.observe(step % 5, drafted=drafted, accepted=accepted, step=step)
        known[step % 5] = observe(
            known[step % 5], drafted=drafted, accepted=accepted, step=step, config=CONFIG
        )
    step = len(observed) + later
    prior = tracker.estimate_all(step)
    expected = [estimate(evidence, prior=prior, step=step, config=CONFIG) for evidence in known]
    assert tracker.estimates(np.arange(6), step).tolist() == pytest.approx([*expected, prior])
