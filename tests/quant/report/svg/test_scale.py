import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spearhead.quant.report.svg import LinearScale, LogScale, linear_ticks, log_ticks


@st.composite
def spans(draw: st.DrawFn) -> tuple[float, float]:
    low = draw(st.floats(-1e6, 1e6))
    return low, low + max(draw(st.floats(1e-6, 1e6)), abs(low) * 1e-6)


@st.composite
def positive_spans(draw: st.DrawFn) -> tuple[float, float]:
    low = 10 ** draw(st.floats(-12, 12))
    return low, low * 10 ** draw(st.floats(0.001, 15))


@settings(deadline=None)
@given(spans(), st.integers(2, 10))
def test_linear_ticks_are_within_rising_evenly_spaced_and_about_as_many_as_wanted(
    span: tuple[float, float], wanted: int
) -> None:
    low, high = span
    ticks = linear_ticks(low, high, wanted)
    assert all(low <= tick <= high for tick in ticks)
    assert wanted / 2.5 - 1 <= len(ticks) <= wanted + 1
    gaps = [later - earlier for earlier, later in itertools.pairwise(ticks)]
    assert all(gap == pytest.approx(gaps[0], rel=1e-3) and gap > 0 for gap in gaps)


@settings(deadline=None)
@given(spans(), st.integers(2, 10))
def test_linear_steps_are_one_two_or_five_times_a_power_of_ten(
    span: tuple[float, float], wanted: int
) -> None:
    step = (span[1] - span[0]) / wanted
    ticks = linear_ticks(*span, wanted)
    if len(ticks) > 1:
        found = (ticks[-1] - ticks[0]) / (len(ticks) - 1)
        assert step * (1 - 1e-3) <= found <= 2.5 * step * (1 + 1e-3)
        mantissa = found / 10 ** math.floor(math.log10(found * (1 + 1e-4)))
        assert min(abs(mantissa - nice) for nice in (1, 2, 5, 10)) < 1e-2


@settings(deadline=None)
@given(positive_spans(), st.integers(3, 8))
def test_log_ticks_are_within_rising_and_neither_too_few_nor_too_many(
    span: tuple[float, float], wanted: int
) -> None:
    ticks = log_ticks(*span, wanted)
    assert all(span[0] <= tick <= span[1] for tick in ticks)
    assert list(ticks) == sorted(set(ticks))
    assert 1 <= len(ticks) <= wanted + 3


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (1, 1000, (1, 10, 100, 1000)),
        (30, 66, (30, 40, 50, 60)),
        (0.1, 1, (0.1, 0.2, 0.5, 1)),
        (1e-9, 1e9, (1e-9, 1e-5, 0.1, 1e3, 1e7)),
    ],
)
def test_log_ticks_of_known_spans(low: float, high: float, ticks: tuple[float, ...]) -> None:
    assert log_ticks(low, high, 5) == ticks


def test_ticks_have_no_noise_in_their_last_digits() -> None:
    assert linear_ticks(0, 1, 10) == (0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1)


@settings(deadline=None)
@given(positive_spans(), st.floats(0, 1))
def test_scales_map_ends_to_ends_and_keep_order(span: tuple[float, float], part: float) -> None:
    low, high = span
    for scale in (
        LinearScale(low=low, high=high, start=300, end=10),
        LogScale(low=low, high=high, start=300, end=10),
    ):
        assert scale(low) == pytest.approx(300)
        assert scale(high) == pytest.approx(10)
        assert 10 - 1e-6 <= scale(low + (high - low) * part) <= 300 + 1e-6


@settings(deadline=None)
@given(st.lists(st.floats(-1e9, 1e9)))
def test_a_fitted_linear_scale_shows_all_values(values: list[float]) -> None:
    scale = LinearScale.fit(values, 0, 100)
    assert all(scale.shows(value) and 0 <= scale(value) <= 100 for value in values)


@settings(deadline=None)
@given(st.lists(st.floats(0, 1.7e308)))
def test_a_fitted_log_scale_shows_all_positive_values(values: list[float]) -> None:
    scale = LogScale.fit(values, 0, 100)
    assert all(scale.shows(value) == (value > 0) for value in values if value == 0 or value > 1e-300)
    assert all(math.isfinite(scale(value)) for value in values if scale.shows(value))


def test_equal_values_still_get_a_span() -> None:
    assert LogScale.fit([5.0, 5.0], 0, 100)(5.0) == pytest.approx(50)
    assert LinearScale.fit([5.0], 0, 100)(5.0) == pytest.approx(50)
    assert LinearScale.fit([0.0], 0, 100)(0.0) == pytest.approx(50)
