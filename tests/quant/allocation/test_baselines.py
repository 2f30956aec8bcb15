from dataclasses import replace
from functools import partial

import pytest

from spearhead.errors import CalibrationError
from spearhead.quant.allocation import (
    AllocationConfig,
    EnergyCurve,
    ModuleShape,
    allocate,
    greedy_waterfilling,
    grid,
    grid_points,
    random_modules,
    uniform_rank,
)

MODULES = [
    ModuleShape(name=f"{index:02}", outputs=100 * (1 + index % 3), inputs=200, row_parallel=False)
    for index in range(12)
]
DAMAGE = {module.name: 0.7**index for index, module in enumerate(MODULES)}
BYTES_A_RANK = sum(2 * (module.outputs + module.inputs) for module in MODULES)


def left_after(half: float, rank: int) -> float:
    return half / (half + rank)


CURVES: dict[str, EnergyCurve] = {
    module.name: partial(left_after, 2.0 + index) for index, module in enumerate(MODULES)
}


def config(budget_bytes: int) -> AllocationConfig:
    return AllocationConfig(budget_bytes=budget_bytes)


def residual_damage(ranks: dict[str, int]) -> float:
    return sum(DAMAGE[name] * CURVES[name](ranks.get(name, 0)) for name in DAMAGE)


def test_the_uniform_rank_is_the_largest_that_fits() -> None:
    result = uniform_rank(MODULES, config(3 * BYTES_A_RANK + 500))
    assert set(result.ranks.values()) == {3} and len(result.ranks) == 12
    assert result.unspent_bytes == 500
    assert uniform_rank(MODULES, config(3 * BYTES_A_RANK), rank=2).spent_bytes == 2 * BYTES_A_RANK


@pytest.mark.parametrize("quantum", [1, 2])
@pytest.mark.parametrize(
    "budget", [650, 4_000, BYTES_A_RANK - 1, 2 * BYTES_A_RANK - 1, 5 * BYTES_A_RANK + 3_333]
)
def test_a_uniform_rank_leaves_less_than_one_step_of_the_budget(budget: int, quantum: int) -> None:
    limits = replace(config(budget), rank_quantum=quantum, min_rank=quantum)
    result = uniform_rank(MODULES, limits)
    ranks = [result.ranks.get(module.name, 0) for module in MODULES]
    assert result.unspent_bytes >= 0
    assert set(ranks) <= {result.common_rank, result.common_rank + quantum}
    steps = [
        quantum * limits.bytes_of(module, 1)
        for module, rank in zip(MODULES, ranks, strict=True)
        if rank == result.common_rank
    ]
    assert result.unspent_bytes < min(steps)
    assert uniform_rank(MODULES[::-1], limits).ranks == result.ranks


def test_no_uniform_rank_is_an_empty_allocation_that_says_so() -> None:
    result = uniform_rank(MODULES, config(599))  # the smallest module takes 600 bytes
    assert not result.ranks
    assert "holds no common rank" in result.message


def test_a_grid_point_has_its_rank_in_the_most_damaged() -> None:
    result = grid(MODULES, DAMAGE, config(10_000), selected_count=3, rank=2)
    assert dict(result.ranks) == {"00": 2, "01": 2, "02": 2}
    with pytest.raises(CalibrationError, match="rank 64 in 12 modules takes"):
        grid(MODULES, DAMAGE, config(10_000), selected_count=12, rank=64)


def test_grid_points_fill_the_budget() -> None:
    points = grid_points(MODULES, DAMAGE, config(BYTES_A_RANK), [1, 2, 8, 64, 100])
    assert points[0] == (12, 1)
    assert [count for count, _ in points] == sorted((count for count, _ in points), reverse=True)
    for count, rank in points:
        grid(MODULES, DAMAGE, config(BYTES_A_RANK), selected_count=count, rank=rank)
        if count < 12:
            with pytest.raises(CalibrationError, match="the budget is"):
                grid(MODULES, DAMAGE, config(BYTES_A_RANK), selected_count=count + 1, rank=rank)


def test_random_modules_depend_on_the_seed_alone_and_spend_the_budget() -> None:
    budget = config(5 * BYTES_A_RANK)

    def lot(seed: int, modules: list[ModuleShape]) -> dict[str, int]:
        return dict(random_modules(modules, DAMAGE, CURVES, budget, count=4, seed=seed).ranks)

    assert lot(1, MODULES) == lot(1, MODULES[::-1])
    assert len({tuple(sorted(lot(seed, MODULES))) for seed in range(5)}) > 1
    assert all(len(lot(seed, MODULES)) == 4 for seed in range(5))
    spent = random_modules(MODULES, DAMAGE, CURVES, budget, count=4, seed=1).spent_bytes
    assert 5 * BYTES_A_RANK - 800 < spent <= 5 * BYTES_A_RANK


def test_only_the_selection_of_random_modules_differs_from_the_entropy_rule() -> None:
    modules = [replace(module, row_parallel=place % 2 == 0) for place, module in enumerate(MODULES)]
    all_of_them = replace(
        config(6 * BYTES_A_RANK + 2500), coverage=100.0, cost_weight=1.0, tensor_parallel_size=4
    )
    chosen = allocate(modules, DAMAGE, CURVES, all_of_them)
    drawn = random_modules(modules, DAMAGE, CURVES, all_of_them, count=len(modules), seed=0)
    assert len(chosen.ranks) == len(modules)
    assert drawn.ranks == chosen.ranks


@pytest.mark.parametrize("ranks", [1, 3, 10])
def test_water_filling_leaves_the_least_damage(ranks: int) -> None:
    budget = config(ranks * BYTES_A_RANK)
    filled = greedy_waterfilling(MODULES, DAMAGE, CURVES, budget)
    assert filled.spent_bytes <= budget.budget_bytes
    rivals = [
        allocate(MODULES, DAMAGE, CURVES, budget),
        uniform_rank(MODULES, budget),
        *(random_modules(MODULES, DAMAGE, CURVES, budget, count=6, seed=seed) for seed in range(3)),
    ]
    best = residual_damage(dict(filled.ranks))
    # Greedy is optimal for convex curves but for the last step's bytes.
    assert all(best <= residual_damage(dict(rival.ranks)) * 1.005 for rival in rivals)


def test_the_entropy_rule_is_between_lot_and_water_filling() -> None:
    budget = config(3 * BYTES_A_RANK)
    entropy = residual_damage(dict(allocate(MODULES, DAMAGE, CURVES, budget).ranks))
    lots = [
        residual_damage(dict(random_modules(MODULES, DAMAGE, CURVES, budget, count=6, seed=seed).ranks))
        for seed in range(5)
    ]
    assert entropy < sum(lots) / 5
