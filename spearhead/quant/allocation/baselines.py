"""Other ways to spend the same budget, to compare the entropy rule with."""

import random
from collections.abc import Iterable, Mapping, Sequence

from spearhead.errors import CalibrationError
from spearhead.quant.allocation.config import AllocationConfig
from spearhead.quant.allocation.damage_share import damage_shares
from spearhead.quant.allocation.entropy_rule import by_score, module_scores
from spearhead.quant.allocation.module_bytes import ModuleShape
from spearhead.quant.allocation.result import Allocation, conclude
from spearhead.quant.allocation.spending import (
    EnergyCurve,
    affordable,
    check_names,
    common_bytes,
    common_ranks,
    correctable,
    largest_common_rank,
    spend,
)


def uniform_rank(
    modules: Sequence[ModuleShape], config: AllocationConfig, *, rank: int | None = None
) -> Allocation:
    """One rank everywhere: the given one, else the largest that fits, and a step more where that still fits.

    Modules take what is left in the order of their names, which knows nothing of damage, so that less than
    one step of any of them is left over. Where the budget holds no common rank, some get the least.

    Raises:
        CalibrationError: ``rank`` does not fit into the budget.
    """
    check_names(modules)
    fitting = [module for module in modules if config.rank_limit(module) >= config.min_rank]
    if rank is not None:
        return _common(modules, fitting, rank, config, "one rank everywhere")
    common = largest_common_rank(fitting, config)
    ranks = _with_remainder(fitting, common, config)
    return conclude(
        modules,
        config,
        ranks,
        _reasons(modules, ranks, "one rank everywhere, and a step more by name"),
        selected_count=sum(rank > 0 for rank in ranks.values()),
        common_rank=common,
        message="" if any(ranks.values()) else _holds_none(config),
    )


def grid(
    modules: Sequence[ModuleShape],
    damage: Mapping[str, float],
    config: AllocationConfig,
    *,
    selected_count: int,
    rank: int,
) -> Allocation:
    """One rank in the ``selected_count`` modules of the highest score.

    Raises:
        CalibrationError: The point does not fit into the budget, or as :func:`allocate`.
    """
    chosen = _order(modules, damage, config)[:selected_count]
    return _common(modules, chosen, rank, config, f"one of the {selected_count} most damaged")


def grid_points(
    modules: Sequence[ModuleShape],
    damage: Mapping[str, float],
    config: AllocationConfig,
    ranks: Iterable[int],
) -> list[tuple[int, int]]:
    """For each rank the largest number of modules that the budget holds: (count, rank), none of count 0."""
    order = _order(modules, damage, config)
    points = []
    for rank in ranks:
        count = len(order)
        while count and common_bytes(order[:count], rank, config) > config.budget_bytes:
            count -= 1
        if count:
            points.append((count, rank))
    return points


def random_modules(
    modules: Sequence[ModuleShape],
    damage: Mapping[str, float],
    energy_curves: Mapping[str, EnergyCurve],
    config: AllocationConfig,
    *,
    count: int,
    seed: int,
) -> Allocation:
    """``count`` modules by lot, with the entropy rule's way of choosing ranks: only the selection differs.

    Raises:
        CalibrationError: As :func:`allocate`.
    """
    check_names(modules)
    shares = damage_shares((module.name for module in modules), damage)
    fitting = correctable(affordable(modules, config), energy_curves, config)
    candidates = sorted(fitting, key=lambda module: module.name)
    chosen = random.Random(seed).sample(candidates, min(count, len(candidates)))
    while chosen and common_bytes(chosen, config.min_rank, config) > config.budget_bytes:
        chosen.pop()
    rank = config.min_rank
    left = config.budget_bytes - common_bytes(chosen, rank, config)
    start = common_ranks(chosen, rank, config)
    scores = module_scores(modules, shares, config)
    ranks, _ = spend(chosen, start, scores, energy_curves, config, left)
    reasons = _reasons(modules, ranks, f"drawn by lot with seed {seed}")
    return conclude(
        modules, config, ranks, reasons, selected_count=len(chosen), common_rank=rank, damage=shares
    )


def greedy_waterfilling(
    modules: Sequence[ModuleShape],
    damage: Mapping[str, float],
    energy_curves: Mapping[str, EnergyCurve],
    config: AllocationConfig,
) -> Allocation:
    """Every rank where a byte removes most of d ρ(rank), from nothing on; knows no entropy and no cost.

    Raises:
        CalibrationError: As :func:`allocate`.
    """
    check_names(modules)
    shares = damage_shares((module.name for module in modules), damage)
    damaged = by_score(affordable(modules, config), shares.shares)
    ranks, _ = spend(damaged, {}, shares.shares, energy_curves, config, config.budget_bytes)
    reasons = _reasons(modules, ranks, "most damage a byte")
    count = sum(rank > 0 for rank in ranks.values())
    return conclude(modules, config, ranks, reasons, selected_count=count, common_rank=0, damage=shares)


def _order(
    modules: Sequence[ModuleShape], damage: Mapping[str, float], config: AllocationConfig
) -> list[ModuleShape]:
    check_names(modules)
    shares = damage_shares((module.name for module in modules), damage)
    return by_score(affordable(modules, config), module_scores(modules, shares, config))


def _common(
    modules: Sequence[ModuleShape],
    chosen: Sequence[ModuleShape],
    rank: int,
    config: AllocationConfig,
    reason: str,
) -> Allocation:
    needed = common_bytes(chosen, rank, config)
    if needed > config.budget_bytes:
        raise CalibrationError(
            f"rank {rank} in {len(chosen)} modules takes {needed} bytes, the budget is "
            f"{config.budget_bytes}; lower the rank or the number of modules"
        )
    ranks = common_ranks(chosen, rank, config)
    message = "" if any(ranks.values()) else _holds_none(config)
    return conclude(
        modules,
        config,
        ranks,
        _reasons(modules, ranks, reason),
        selected_count=len(chosen) if rank else 0,
        common_rank=rank,
        message=message,
    )


def _with_remainder(modules: Sequence[ModuleShape], rank: int, config: AllocationConfig) -> dict[str, int]:
    ranks = common_ranks(modules, rank, config)
    left = config.budget_bytes - common_bytes(modules, rank, config)
    further = rank + config.rank_quantum if rank else config.min_rank
    for module in sorted(modules, key=lambda module: module.name):
        price = config.bytes_of(module, further) - config.bytes_of(module, ranks[module.name])
        if further <= config.rank_limit(module) and price <= left:
            ranks[module.name] = further
            left -= price
    return ranks


def _holds_none(config: AllocationConfig) -> str:
    return f"the budget of {config.budget_bytes} bytes holds no common rank"


def _reasons(modules: Sequence[ModuleShape], ranks: Mapping[str, int], reason: str) -> dict[str, str]:
    return {module.name: reason if ranks.get(module.name) else "not chosen" for module in modules}
