from hypothesis import given
from hypothesis import strategies as st

from spearhead.cli.bench.workload import WorkloadOptions, plan_comparison, plan_requests


def test_equal_options_give_equal_requests():
    options = WorkloadOptions(requests=20, rate=5.0, cancel_share=0.3)
    assert plan_requests(options) == plan_requests(options)


@given(seed=st.integers(0, 2**32), share=st.floats(0, 1))
def test_lengths_stay_in_their_ranges(seed, share):
    options = WorkloadOptions(
        requests=10, prompt_words=(8, 40), output_tokens=(3, 9), cancel_share=share, seed=seed
    )
    for request in plan_requests(options):
        assert 8 <= len(request.prompt.split()) <= 40
        assert 3 <= request.max_tokens <= 9
        assert request.cancel_after_tokens is None or 1 <= request.cancel_after_tokens <= request.max_tokens


def test_prompts_differ_from_their_first_words_on_also_between_runs():
    prompts = [r.prompt for r in plan_requests(WorkloadOptions(requests=50, label="a"))]
    prompts += [r.prompt for r in plan_requests(WorkloadOptions(requests=50, label="b"))]
    assert len({tuple(prompt.split()[:2]) for prompt in prompts}) == 100


def test_an_open_loop_has_rising_arrivals_at_about_its_rate():
    arrivals = [r.arrival_s for r in plan_requests(WorkloadOptions(requests=2000, rate=10.0))]
    assert arrivals == sorted(arrivals)
    # The sum of 2000 exponentials is within 10% of its mean but for a chance below 1e-5.
    assert 180 < arrivals[-1] < 220


def test_a_closed_loop_has_no_arrival_times():
    assert {r.arrival_s for r in plan_requests(WorkloadOptions())} == {0.0}


def test_a_comparison_has_equal_lengths_and_fresh_prompts_each_time():
    first, second = plan_comparison(8, 64, repeat=1), plan_comparison(8, 64, repeat=2)
    assert {request.max_tokens for request in first} == {64}
    assert len({len(request.prompt.split()) for request in first + second}) == 1
    assert not {request.prompt for request in first} & {request.prompt for request in second}
    assert first == plan_comparison(8, 64, repeat=1)
