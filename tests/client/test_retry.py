import pytest
from hypothesis import given
from hypothesis import strategies as st

from spearhead.client.retry import RetryPolicy, retry_delay_s
from spearhead.errors import InvalidRequest, NotReady, Overloaded, RankFailure, RequestExists, SpearheadError

POLICY = RetryPolicy(attempts=3, initial_backoff_s=0.2, max_backoff_s=2.0)


def decide(error, attempt=1, remaining_s=60.0, jitter=1.0):
    return retry_delay_s(POLICY, error, attempt=attempt, remaining_s=remaining_s, jitter=jitter)


def test_unavailable_is_retried_with_growing_delays_until_the_attempts_are_used_up():
    delays = [decide(NotReady("x"), attempt) for attempt in (1, 2, 3)]
    assert delays == [0.2, 0.4, None]


@pytest.mark.parametrize(
    "error", [InvalidRequest("x"), Overloaded("x"), RankFailure("x"), SpearheadError("x")]
)
def test_nothing_but_unavailable_is_retried(error):
    assert decide(error) is None


def test_a_duplicate_id_is_ours_only_after_a_first_attempt():
    assert decide(RequestExists("x"), attempt=1) is None
    assert decide(RequestExists("x"), attempt=2) is not None


def test_the_servers_own_delay_is_honoured():
    assert decide(NotReady("x", retry_after_s=1.5)) == 1.5


def test_a_server_that_asks_for_more_than_the_limit_is_not_waited_for():
    assert decide(NotReady("x", retry_after_s=3.0)) is None


def test_no_attempt_starts_after_the_deadline():
    assert decide(NotReady("x"), remaining_s=0.1) is None


@given(
    attempt=st.integers(1, 2), remaining_s=st.floats(0, 100), jitter=st.floats(0, 1),
    retry_after_s=st.none() | st.floats(0, 100),
)  # fmt: skip
def test_a_delay_never_exceeds_its_limits(attempt, remaining_s, jitter, retry_after_s):
    delay_s = decide(NotReady("x", retry_after_s=retry_after_s), attempt, remaining_s, jitter)
    assert delay_s is None or 0 <= delay_s <= min(POLICY.max_backoff_s, remaining_s)


@pytest.mark.parametrize("values", [{"attempts": 0}, {"initial_backoff_s": -1.0}, {"max_backoff_s": 0.1}])
def test_a_policy_out_of_range_is_refused(values):
    with pytest.raises(ValueError, match="retry policy"):
        RetryPolicy(**values)
