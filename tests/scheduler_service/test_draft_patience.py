"""How long a step waits for the drafter."""

import pytest

from scheduler_service.draft_patience import DraftPatience


def test_before_any_answer_the_wait_is_the_longest() -> None:
    assert DraftPatience(5.0, 3).wait_s(8) == 5.0


@pytest.mark.parametrize(("usual_s", "wait_s"), [(0.001, 0.25), (0.1, 1.0), (2.0, 5.0)])
def test_the_wait_is_ten_times_the_usual_within_bounds(usual_s: float, wait_s: float) -> None:
    patience = DraftPatience(5.0, 3)
    for _ in range(50):
        patience.answered(usual_s, 8)
    assert patience.wait_s(8) == pytest.approx(wait_s)


def test_a_batch_that_grows_at_once_gets_more_time() -> None:
    patience = DraftPatience(60.0, 3)
    patience.answered(0.1, 4)
    assert patience.wait_s(64) == pytest.approx(16.0)
    assert patience.wait_s(1) == pytest.approx(1.0)


def test_only_timeouts_in_a_row_lose_the_drafter() -> None:
    patience = DraftPatience(5.0, 3)
    assert [patience.timed_out(), patience.timed_out()] == [False, False]
    patience.answered(0.1, 1)
    assert [patience.timed_out() for _ in range(4)] == [False, False, True, False]


def test_a_drafter_that_became_slow_gets_more_time_after_each_loss() -> None:
    patience = DraftPatience(60.0, 1)
    patience.answered(0.1, 1)
    waits = []
    for _ in range(3):
        assert patience.timed_out()
        waits.append(patience.wait_s(1))
    assert waits == pytest.approx([2.0, 4.0, 8.0])
