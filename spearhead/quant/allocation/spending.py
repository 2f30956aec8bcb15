"""Spends bytes rank by rank, always where a byte takes away most damage."""

import heapq
from collections.abc import Callable, Mapping, Sequence

from spearhead.errors import CalibrationError
from spearhead.quant.allocation.config import AllocationConfig
from spearhead.quant.allocation.module_bytes import ModuleShape

EnergyCurve = Callable[[int], float]
"""Share of a module's error that is left after a rank: 1 at 0, falling."""


def spend(
    modules: Sequence[ModuleShape],
    ranks: Mapping[str, int],
    weights: Mapping[str, float],
    energy_curves: Mapping[str, EnergyCurve],
    config: AllocationConfig,
    left_bytes: int,
) -> tuple[dict[str, int], int]:
    """Raises ranks until no module can take what is left.

    Args:
        modules: Those that may take more.
        ranks: What they have; 0 = none yet, then the first step is to ``config.min_rank``.
        weights: Module to the damage that its whole error stands for.
        energy_curves: Module to its curve.
        config: Limits and bytes.
        left_bytes: What may be spent.

    Returns:
        New ranks of these modules, and what is left now.

    Raises:
        CalibrationError: A curve is missing or gives a number that is not finite.
    """
    result = {module.name: ranks.get(module.name, 0) for module in modules}
    waiting: list[tuple[float, str, int]] = []
    by_name = {module.name: module for module in modules}

    def offer(module: ModuleShape) -> None:
        rank = result[module.name]
        further = rank + config.rank_quantum if rank else config.min_rank
        if further <= config.rank_limit(module):
            gain = weights[module.name] * _removed(module.name, energy_curves, rank, further)
            if gain > 0:  # a rank beyond the error's own removes nothing
                heapq.heappush(waiting, (-gain / _price(config, module, rank, further), module.name, further))

    for module in modules:
        offer(module)
    while waiting:
        _, name, further = heapq.heappop(waiting)
        price = _price(config, by_name[name], result[name], further)
        if price <= left_bytes:  # otherwise it never fits again: what is left only shrinks
            left_bytes -= price
            result[name] = further
            offer(by_name[name])
    return result, left_bytes


def largest_common_rank(modules: Sequence[ModuleShape], config: AllocationConfig) -> int:
    """The largest rank that the budget holds in all of the modules; 0 = not even the least."""
    rank, further = 0, config.min_rank
    while modules and further <= config.max_rank:
        if common_bytes(modules, further, config) > config.budget_bytes:
            break
        rank, further = further, further + config.rank_quantum
    return rank


def common_ranks(modules: Sequence[ModuleShape], rank: int, config: AllocationConfig) -> dict[str, int]:
    """One rank in all modules, less where a module is too small for it."""
    return {module.name: min(rank, config.rank_limit(module)) for module in modules}


def common_bytes(modules: Sequence[ModuleShape], rank: int, config: AllocationConfig) -> int:
    """Bytes of :func:`common_ranks`."""
    return sum(config.bytes_of(module, min(rank, config.rank_limit(module))) for module in modules)


def affordable(modules: Sequence[ModuleShape], config: AllocationConfig) -> list[ModuleShape]:
    """Modules that are large enough for the least rank and, alone, small enough for the budget."""
    return [
        module
        for module in modules
        if config.rank_limit(module) >= config.min_rank
        and config.bytes_of(module, config.min_rank) <= config.budget_bytes
    ]


def correctable(
    modules: Sequence[ModuleShape], energy_curves: Mapping[str, EnergyCurve], config: AllocationConfig
) -> list[ModuleShape]:
    """Modules whose error the least rank makes smaller.

    Raises:
        CalibrationError: A curve is missing or gives a number that is not finite.
    """
    return [module for module in modules if _removed(module.name, energy_curves, 0, config.min_rank) > 0]


def check_names(modules: Sequence[ModuleShape]) -> None:
    """Refuses modules that share a name.

    Raises:
        CalibrationError: A name that occurs twice.
    """
    seen: set[str] = set()
    for module in modules:
        if module.name in seen:
            raise CalibrationError(f"module {module.name} is given twice; give each module once")
        seen.add(module.name)


def _price(config: AllocationConfig, module: ModuleShape, rank: int, further: int) -> int:
    return config.bytes_of(module, further) - config.bytes_of(module, rank)


def _removed(name: str, energy_curves: Mapping[str, EnergyCurve], rank: int, further: int) -> float:
    if name not in energy_curves:
        raise CalibrationError(f"{name} has no energy curve; gather its statistics again")
    removed = energy_curves[name](rank) - energy_curves[name](further)
    if removed != removed:
        raise CalibrationError(f"the energy curve of {name} is NaN between ranks {rank} and {further}")
    return removed
