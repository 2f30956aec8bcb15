"""Predictions: through the measured points, additive, and never cheaper for more work."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_service.latency_table import LatencyEntry
from scheduler_service.step_cost import StepCost, compile_cost
from spearhead.errors import ConfigError
from tests.scheduler_service.latencies import ROWS, profile

UNTIMED = settings(deadline=None)  # How long an example takes is no claim of these tests.

times = st.floats(0.1, 1e5)
row_lists = st.lists(st.integers(1, 4096), min_size=2, max_size=6, unique=True).map(sorted)
context_lists = st.lists(st.integers(0, 50_000), min_size=1, max_size=4, unique=True).map(sorted)


def measured(rows: list[int], contexts: list[int], values: list[float]) -> list[LatencyEntry]:
    """One linear shape, one head and one attention over these points, in this order of values."""
    source = itertools.cycle(values)
    entries = [LatencyEntry(op=op, rows=r, median_us=next(source)) for op in ("linear", "head") for r in rows]
    grid = itertools.product(rows, contexts)
    entries += [LatencyEntry(op="attention", rows=r, context=c, median_us=next(source)) for r, c in grid]
    return entries


@st.composite
def tables(draw: st.DrawFn) -> list[LatencyEntry]:
    return measured(draw(row_lists), draw(context_lists), draw(st.lists(times, min_size=40, max_size=40)))


@UNTIMED
@given(tables(), st.integers(1, 9000), st.integers(0, 9000), st.integers(0, 90_000), st.integers(0, 90_000))
def test_more_rows_or_context_never_cost_less(
    entries: list[LatencyEntry], rows: int, more_rows: int, context: int, more_context: int
) -> None:
    cost = compile_cost(entries)
    assert cost.forward.at(rows) <= cost.forward.at(rows + more_rows) * (1 + 1e-9)
    assert cost.head.at(rows) <= cost.head.at(rows + more_rows) * (1 + 1e-9)
    less, more = cost.attention(rows, context), cost.attention(rows + more_rows, context + more_context)
    assert 0 <= less <= more * (1 + 1e-9)


@UNTIMED
@given(row_lists, context_lists, st.floats(0.1, 100))
def test_measured_points_are_met_exactly(rows: list[int], contexts: list[int], scale: float) -> None:
    entries = [LatencyEntry(op="linear", rows=r, median_us=scale * (50 + r)) for r in rows]
    grid = itertools.product(rows, contexts)
    entries += [
        LatencyEntry(op="attention", rows=r, context=c, median_us=scale * (1 + r * c)) for r, c in grid
    ]
    cost = compile_cost(entries)
    for entry in entries:
        predicted = (
            cost.forward.at(entry.rows) if entry.op == "linear" else cost.attention(entry.rows, entry.context)
        )
        assert predicted == pytest.approx(entry.median_us * 1e-6, rel=1e-9)


def test_between_points_is_a_straight_line() -> None:
    cost = compile_cost(measured([2, 4], [0, 100], [10, 30, 1, 2, 0, 10, 20, 50]))
    assert cost.forward.at(3) == pytest.approx(20e-6)
    assert cost.attention(3, 50) == pytest.approx((0 + 10 + 20 + 50) / 4 * 1e-6)


def test_beyond_the_last_point_the_last_slope_holds() -> None:
    cost = compile_cost(measured([2, 4], [0, 100], [10, 30, 1, 2, 0, 10, 20, 50]))
    assert cost.forward.at(10) == pytest.approx(90e-6)
    assert cost.attention(2, 200) == pytest.approx(20e-6)
    assert cost.attention(6, 0) == pytest.approx(40e-6)


def test_below_the_first_point_is_flat_and_nothing_is_free() -> None:
    cost = compile_cost(measured([2, 4], [50, 100], [10, 30, 1, 2, 5, 10, 20, 50]))
    assert cost.forward.at(1) == pytest.approx(10e-6)
    assert cost.attention(1, 0) == pytest.approx(5e-6)
    assert cost.forward.at(0) == cost.head.at(0) == 0


def test_noise_never_makes_more_work_cheaper() -> None:
    cost = compile_cost(measured([1, 2, 4], [0], [10, 7, 20, 1, 1, 1]))
    assert cost.forward.at(2) == pytest.approx(10e-6)


def test_a_pass_is_the_sum_of_its_operations() -> None:
    cost = compile_cost(profile(row_us=10, base_us=100).latencies)
    attention = [(1, 0), (4, 1024), (16, 256)]
    parts = cost.forward.at(21) + cost.head.at(3) + sum(cost.attention(r, c) for r, c in attention)
    assert cost.predict_s(21, attention, 3) == pytest.approx(parts)


def test_calls_per_forward_and_shapes_add_up() -> None:
    entries = [
        LatencyEntry(op="linear", n=8, k=8, rows=r, median_us=r, calls_per_forward=30) for r in (1, 8)
    ] + [LatencyEntry(op="linear", n=9, k=8, rank=4, rows=r, median_us=2 * r) for r in (1, 2, 8)]
    assert compile_cost(entries).forward.at(8) == pytest.approx((8 * 30 + 16) * 1e-6)


def test_a_single_overhead_is_constant() -> None:
    bare, with_overhead = (compile_cost(profile(row_us=1, overhead_us=us).latencies) for us in (0, 70))
    for rows in (1, 7, 5000):
        assert with_overhead.forward.at(rows) - bare.forward.at(rows) == pytest.approx(70e-6)


@pytest.mark.parametrize(("entry", "message"), [
    (LatencyEntry(op="matmul", rows=1, median_us=1), "unknown operation 'matmul'"),
    (LatencyEntry(op="linear", rows=0, median_us=1), "rows=0"),
    (LatencyEntry(op="linear", rows=1, context=-1, median_us=1), "context=-1"),
    (LatencyEntry(op="linear", rows=1, median_us=1, calls_per_forward=0), "calls_per_forward=0"),
    (LatencyEntry(op="linear", rows=1, median_us=float("nan")), "nan us"),
    (LatencyEntry(op="linear", rows=1, median_us=-1.0), "-1.0 us"),
    (LatencyEntry(op="linear", n=5, rows=1, median_us=1), "one row count only"),
])  # fmt: skip
def test_bad_measurements_are_refused_by_name(entry: LatencyEntry, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        compile_cost([*profile(row_us=1).latencies, entry])


def test_a_table_without_linear_layers_is_refused() -> None:
    with pytest.raises(ConfigError, match="no 'linear' entry"):
        compile_cost([])


def test_linear_fit_of_straight_costs_changes_nothing() -> None:
    cost = compile_cost(profile(row_us=10, base_us=100).latencies)
    fitted = cost.linear_fit()
    for rows in (1, 10, 100, 3000):
        assert fitted.forward.at(rows) == pytest.approx(cost.forward.at(rows), rel=1e-6)
        assert fitted.head.at(rows) == pytest.approx(cost.head.at(rows), rel=1e-6)


def error_at_one_row(cost: StepCost, measured_cost: StepCost) -> float:
    return abs(cost.forward.at(1) / measured_cost.forward.at(1) - 1)


def test_linear_fit_misses_a_flat_start() -> None:
    cost = compile_cost(profile(row_us=60, base_us=2000, free_rows=64).latencies)
    assert error_at_one_row(cost, cost) == 0
    assert error_at_one_row(cost.linear_fit(), cost) > 0.1


@UNTIMED
@given(tables(), st.sampled_from(ROWS), st.integers(0, 9000))
def test_linear_fit_is_monotone_too(entries: list[LatencyEntry], rows: int, context: int) -> None:
    fitted = compile_cost(entries).linear_fit()
    assert 0 <= fitted.forward.at(rows) <= fitted.forward.at(rows + 1) * (1 + 1e-9)
    assert 0 <= fitted.attention(rows, context) <= fitted.attention(rows + 1, context + 1) * (1 + 1e-9)
