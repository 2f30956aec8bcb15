import random
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spearhead.errors import CalibrationError
from spearhead.quant.allocation import (
    Allocation,
    AllocationConfig,
    EnergyCurve,
    ModuleShape,
    allocate,
    decode_cost_us,
)

Case = tuple[list[ModuleShape], dict[str, float], dict[str, EnergyCurve], AllocationConfig]


def left_after(half: int, rank: int, own_rank: int = 1 << 30) -> float:
    return half / (half + min(rank, own_rank))


@st.composite
def modules_and_damage(draw: st.DrawFn) -> tuple[list[ModuleShape], dict[str, float], dict[str, EnergyCurve]]:
    count = draw(st.integers(1, 25))
    modules = [
        ModuleShape(
            name=f"layers.{index}",
            outputs=draw(st.sampled_from([2, 5, 64, 192, 576])),
            inputs=draw(st.sampled_from([3, 64, 576, 1536])),
            row_parallel=draw(st.booleans()),
        )
        for index in range(count)
    ]
    # Whole numbers, so that scaling is exact.
    damage = {module.name: float(draw(st.integers(0, 1000))) for module in modules}
    curves: dict[str, EnergyCurve] = {
        module.name: partial(
            left_after, draw(st.integers(1, 50)), own_rank=draw(st.sampled_from([0, 2, 9, 99]))
        )
        for module in modules
    }
    return modules, damage, curves


@st.composite
def cases(draw: st.DrawFn) -> Case:
    modules, damage, curves = draw(modules_and_damage())
    quantum = draw(st.sampled_from([1, 2, 4]))
    config = AllocationConfig(
        budget_bytes=draw(st.integers(0, 400_000)),
        factor_bits=draw(st.sampled_from([16, 8, 4])),
        gated=draw(st.booleans()),
        gate_min_rank=draw(st.integers(1, 6)),
        rank_quantum=quantum,
        min_rank=quantum * draw(st.integers(1, 3)),
        max_rank=draw(st.sampled_from([12, 17, 64])),
        coverage=draw(st.sampled_from([0.5, 1.0, 2.0])),
        cost_weight=draw(st.sampled_from([0.0, 0.25, 1.0])),
        tensor_parallel_size=draw(st.sampled_from([1, 2, 8])),
    )
    return modules, damage, curves, config


def test_ranks_without_a_gate_are_not_charged_for_one() -> None:
    (module,) = equal_shapes(1)
    gated = AllocationConfig(budget_bytes=0, gated=True, gate_min_rank=4)
    static = replace(gated, gated=False)
    assert [gated.bytes_of(module, rank) > static.bytes_of(module, rank) for rank in (0, 3, 4, 5)] == [
        False, False, True, True,
    ]  # fmt: skip


def equal_shapes(count: int, **shape: Any) -> list[ModuleShape]:
    shape = {"outputs": 2048, "inputs": 2048, "row_parallel": False} | shape
    return [ModuleShape(name=f"{index:03}", **shape) for index in range(count)]


def even(modules: list[ModuleShape], damage: Any, **config: Any) -> Allocation:
    values = dict(zip((m.name for m in modules), damage, strict=True))
    curves: dict[str, EnergyCurve] = {m.name: partial(left_after, 8) for m in modules}
    return allocate(modules, values, curves, AllocationConfig(**config))


def mean_rank(result: Allocation) -> float:
    """Of the selected modules, where these come first; what they cannot take goes to others."""
    chosen = list(result.ranks.values())[: result.selected_count]
    return sum(chosen) / max(1, len(chosen))


@given(cases())
def test_the_budget_is_never_exceeded_and_ranks_keep_their_limits(case: Case) -> None:
    modules, _, _, config = case
    result = allocate(*case)
    by_name = {module.name: module for module in modules}
    spent = sum(config.bytes_of(by_name[name], rank) for name, rank in result.ranks.items())
    assert spent == result.spent_bytes <= config.budget_bytes
    assert result.unspent_bytes == config.budget_bytes - spent
    assert result.device_bytes == spent if config.tensor_parallel_size == 1 else result.device_bytes <= spent
    for name, rank in result.ranks.items():
        assert rank % config.rank_quantum == 0
        module = by_name[name]
        assert config.min_rank <= rank <= min(config.max_rank, module.outputs, module.inputs)
    assert result.reasons.keys() == by_name.keys()


@given(cases())
def test_what_is_left_is_too_little_for_any_further_step(case: Case) -> None:
    modules, damage, curves, config = case
    result = allocate(*case)
    for module in modules:
        rank = result.ranks.get(module.name, 0)
        further = rank + config.rank_quantum if rank else config.min_rank
        gain = damage[module.name] * (curves[module.name](rank) - curves[module.name](further))
        if gain and further <= config.rank_limit(module):
            assert config.bytes_of(module, further) - config.bytes_of(module, rank) > result.unspent_bytes


@given(cases())
def test_every_rank_removes_something(case: Case) -> None:
    _, _, curves, config = case
    for name, rank in allocate(*case).ranks.items():
        before = rank - config.rank_quantum if rank > config.min_rank else 0
        assert curves[name](before) > curves[name](rank)


@given(cases(), st.randoms(use_true_random=False))
def test_the_order_of_modules_does_not_matter(case: Case, lot: random.Random) -> None:
    modules, damage, curves, config = case
    shuffled = lot.sample(modules, len(modules))
    result, other = allocate(*case), allocate(shuffled, damage, curves, config)
    assert dict(result.ranks) == dict(other.ranks)
    assert result.reasons == other.reasons
    assert result.damage == other.damage


@given(cases(), st.integers(2, 1000))
def test_the_unit_of_damage_does_not_matter(case: Case, scale: int) -> None:
    modules, damage, curves, config = case
    scaled = {name: value * scale for name, value in damage.items()}
    assert allocate(*case).ranks == allocate(modules, scaled, curves, config).ranks


@given(cases())
def test_undamaged_modules_get_nothing(case: Case) -> None:
    _, damage, _, _ = case
    result = allocate(*case)
    assert all(damage[name] > 0 for name in result.ranks)
    assert all(result.reasons[name] == "no damage" for name, value in damage.items() if not value)


@example([0.25, 0.1875], 6, 2_203_648)  # four at the largest rank leave something over
@given(
    st.lists(st.floats(0.1, 1.0), min_size=2, max_size=5),
    st.integers(4, 64),
    st.integers(8_192, 4_000_000),
)
def test_the_wider_damage_is_spread_the_more_modules_get_the_smaller_ranks(
    decays: list[float], count: int, budget: int
) -> None:
    modules = equal_shapes(count)
    results = [
        even(modules, [decay**place for place in range(count)], budget_bytes=budget)
        for decay in sorted(decays)
    ]
    for narrow, wide in pairwise(results):
        assert narrow.damage is not None and wide.damage is not None
        assert narrow.damage.normalised_entropy <= wide.damage.normalised_entropy + 1e-12
        assert narrow.selected_count <= wide.selected_count
        assert mean_rank(narrow) >= mean_rank(wide)


@given(modules_and_damage(), st.integers(0, 400_000))
def test_without_cost_weight_tensor_parallelism_changes_nothing(
    modules: tuple[list[ModuleShape], dict[str, float], dict[str, EnergyCurve]], budget: int
) -> None:
    one, eight = (
        allocate(*modules, AllocationConfig(budget_bytes=budget, cost_weight=0.0, tensor_parallel_size=size))
        for size in (1, 8)
    )
    assert one.ranks == eight.ranks


@settings(max_examples=50)
@given(
    st.lists(st.booleans(), min_size=2, max_size=30),
    st.sampled_from([512, 2048, 8192]),
    st.integers(5_000, 2_000_000),
    st.sampled_from([0.25, 1.0]),
    st.sampled_from([2, 4, 8]),
)
def test_tensor_parallelism_never_raises_the_share_of_modules_that_must_exchange(
    kinds: list[bool], width: int, budget: int, weight: float, size: int
) -> None:
    modules = [
        ModuleShape(name=f"{index:03}", outputs=width, inputs=width, row_parallel=kind)
        for index, kind in enumerate(kinds)
    ]

    def share(size: int) -> float:
        result = even(
            modules,
            [1.0] * len(modules),
            budget_bytes=budget,
            cost_weight=weight,
            tensor_parallel_size=size,
            coverage=0.4,
        )
        exchanging = [module.name for module in modules if module.row_parallel]
        return sum(name in result.ranks for name in exchanging) / max(1, len(result.ranks))

    assert share(size) <= share(1)


def test_an_exchange_makes_a_module_cost_more() -> None:
    row = ModuleShape(name="down", outputs=2048, inputs=8192, row_parallel=True)
    alone, cut = (AllocationConfig(budget_bytes=1, tensor_parallel_size=size) for size in (1, 2))
    assert decode_cost_us(row, 16, alone) == pytest.approx(0.15 + 2 * 16 * 10240 / 3e6)
    assert decode_cost_us(row, 16, cut) == pytest.approx(0.15 + 2 * 16 * 6144 / 3e6 + 1.5 + 2 * 16 / 3e5)
    column = replace(row, row_parallel=False)
    assert decode_cost_us(column, 16, cut) == pytest.approx(0.15 + 2 * 16 * 9216 / 3e6)


def test_equal_damage_selects_all_and_a_peak_selects_one() -> None:
    modules = equal_shapes(112)
    wide = even(modules, [1.0] * 112, budget_bytes=112 * 8192 * 4)
    assert wide.selected_count == 112
    assert set(wide.ranks.values()) == {4}
    peak = even(modules, [0.0] * 111 + [1.0], budget_bytes=112 * 8192 * 4)
    assert dict(peak.ranks) == {"111": 64}
    assert peak.unspent_bytes == (112 * 4 - 64) * 8192


def test_a_saturated_selection_spreads_further() -> None:
    result = even(
        equal_shapes(20), [0.2**place for place in range(20)], budget_bytes=8192 * 64 * 5 + 8192 * 3
    )
    assert result.selected_count == 5
    assert [result.ranks[f"{place:03}"] for place in range(6)] == [64] * 5 + [3]
    assert (
        result.reasons["005"] == "place 6 by damage and cost, after the 5 selected: rank 3 from what was left"
    )


def test_a_budget_that_cannot_hold_the_least_rank_everywhere_concentrates() -> None:
    result = even(equal_shapes(10), [1.0] * 10, budget_bytes=8192 * 4 * 3, min_rank=4)
    assert dict(result.ranks) == {"000": 4, "001": 4, "002": 4}


def test_an_outlier_module_is_singled_out() -> None:
    result = even(equal_shapes(50), [1e-4] * 20 + [3.0] + [1e-4] * 29, budget_bytes=8192 * 51)
    assert result.selected_count == 3
    assert max(result.ranks, key=lambda name: result.ranks[name]) == "020"


def test_no_damage_is_an_empty_allocation() -> None:
    result = even(equal_shapes(3), [0.0] * 3, budget_bytes=10**6)
    assert not result.ranks
    assert result.message == "no module is damaged; nothing needs a compensator"


def test_damage_without_an_error_to_correct_is_an_empty_allocation_that_says_so() -> None:
    result = allocate(
        equal_shapes(1), {"000": 1.0}, {"000": lambda _rank: 1.0}, AllocationConfig(budget_bytes=10**6)
    )
    assert not result.ranks
    assert (
        result.message == "the calibration tokens show no error of any module; give more or other sequences"
    )
    assert result.reasons["000"] == "the calibration tokens show no error of it"


def test_a_budget_below_the_smallest_compensator_is_an_empty_allocation_that_says_so() -> None:
    result = even(equal_shapes(3), [1.0] * 3, budget_bytes=8191)
    assert not result.ranks
    assert result.message.startswith(
        "the budget of 8191 bytes holds no compensator: the smallest takes 8192 at rank 1"
    )


def test_a_module_that_no_budget_share_fits_leaves_room_for_a_smaller_one() -> None:
    modules = [*equal_shapes(1), ModuleShape(name="small", outputs=100, inputs=100, row_parallel=False)]
    result = even(modules, [1.0, 0.5], budget_bytes=1000)
    assert dict(result.ranks) == {"small": 2}
    assert result.reasons["000"] == "8192 bytes at rank 1 exceed the budget"


def test_no_rank_is_bought_that_removes_nothing() -> None:
    curves: dict[str, EnergyCurve] = {
        "000": lambda rank: max(0.0, 1 - rank / 3),
        "001": partial(left_after, 8),
    }
    result = allocate(
        equal_shapes(2), {"000": 9.0, "001": 1.0}, curves, AllocationConfig(budget_bytes=8192 * 20)
    )
    assert dict(result.ranks) == {"000": 3, "001": 17}


def test_a_missing_curve_and_a_repeated_name_name_the_module() -> None:
    modules = equal_shapes(2)
    with pytest.raises(CalibrationError, match=r"00[01] has no energy curve"):
        allocate(modules, {"000": 1, "001": 1}, {}, AllocationConfig(budget_bytes=10**6))
    with pytest.raises(CalibrationError, match="module 001 is given twice"):
        allocate([*modules, modules[1]], {}, {}, AllocationConfig(budget_bytes=10**6))
    with pytest.raises(CalibrationError, match="the energy curve of 000 is NaN"):
        allocate(
            modules[:1], {"000": 1}, {"000": lambda rank: float("nan")}, AllocationConfig(budget_bytes=10**5)
        )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("budget_bytes", -1),
        ("factor_bits", 5),
        ("min_rank", 3),
        ("max_rank", 1),
        ("cost_weight", -0.1),
        ("coverage", 0.0),
        ("tensor_parallel_size", 0),
        ("rank_quantum", 0),
    ],
)
def test_a_value_out_of_range_is_named(name: str, value: Any) -> None:
    values = {"budget_bytes": 1, "rank_quantum": 2, "min_rank": 2} | {name: value}
    with pytest.raises(CalibrationError, match=f"allocation: {name} is {value!r}"):
        AllocationConfig(**values)
