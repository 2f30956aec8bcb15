import numpy as np
import pytest

from spearhead.quant.evaluation.sign_flip import sign_flip_p_value


def _p(values: list[float] | np.ndarray, draws: int = 2000, seed: int = 0) -> float:
    return sign_flip_p_value(np.asarray(values, np.float64), draws=draws, seed=seed)


def test_the_p_value_is_the_share_of_flips_that_are_as_low() -> None:
    # Of eight sums of ±1 ±2 ±4 two are at most -5: -7 and -5.
    assert _p([1, -2, -4]) == 2 / 8
    assert _p([-1, -1, -1, -1, -1, -1]) == 1 / 64
    assert _p([1, 1, 1]) == 1


@pytest.mark.parametrize("count", [1, 6, 14, 15, 100])
def test_no_difference_is_no_evidence(count: int) -> None:
    assert _p(np.zeros(count)) == 1


def test_drawn_flips_agree_with_all_flips() -> None:
    values = np.random.default_rng(4).normal(-0.4, 1, 14)
    exact = _p(values)
    # A fifteenth difference of zero changes no sum, and all flips are drawn. 20,000 draws of a share of 0.1
    # have a standard error of 0.002; off by 5 of them once in two million seeds.
    assert 0.01 < exact < 0.3
    assert _p([*values, 0.0], draws=20_000) == pytest.approx(exact, abs=0.012)
    assert _p([*values, 0.0], seed=3) == _p([*values, 0.0], seed=3)


def test_rounding_of_equal_sums_does_not_hide_ties() -> None:
    # All sums with two minus signs equal the observed one only up to rounding.
    assert _p([0.1, 0.1, -0.1, -0.1]) == 11 / 16


def test_a_certain_difference_of_many_is_found() -> None:
    assert _p(np.random.default_rng(5).normal(-1, 1, 100)) == 1 / 2001
