"""The entropy-aware rule: damage spread wide gets many small compensators, few peaks get large ones.

Entropy says how many modules share the budget. Within them a byte goes where it removes most damage: one rank
for all of them left more KL divergence (docs/decisions/0011).
"""

import math
from collections.abc import Mapping, Sequence

from spearhead.quant.allocation.config import AllocationConfig, decode_cost_us
from spearhead.quant.allocation.damage_share import DamageShares, damage_shares
from spearhead.quant.allocation.module_bytes import ModuleShape
from spearhead.quant.allocation.result import Allocation, conclude
from spearhead.quant.allocation.spending import (
    EnergyCurve,
    affordable,
    check_names,
    common_bytes,
    common_ranks,
    correctable,
    spend,
)

# An effective number of 112 must select 112 modules though its floating-point value is a hair above.
_ROUNDING = 1e-6


def allocate(
    modules: Sequence[ModuleShape],
    damage: Mapping[str, float],
    energy_curves: Mapping[str, EnergyCurve],
    config: AllocationConfig,
) -> Allocation:
    """Selects modules and ranks.

    Modules are ordered by damage share times cheapness to the power λ. The first k = ⌈κ exp(entropy)⌉ get
    the least rank; k shrinks where the budget does not hold that, and grows where it holds the largest rank
    of all. The rest goes rank by rank to where a byte removes most damage, then to further modules.

    Args:
        modules: Candidates, in any order.
        damage: Module to damage, at least 0, in any unit.
        energy_curves: Module to the share of its error that a rank leaves, such as
            :meth:`spearhead.quant.low_rank.LowRank.residual`.
        config: The budget.

    Returns:
        Ranks whose bytes never exceed the budget; none, with a message, without damage or with a budget
        below the smallest compensator. The same whatever the order of modules and the scale of damage.

    Raises:
        CalibrationError: Damage that is missing, negative or not finite, a missing curve, or a name twice;
            names the module.
    """
    check_names(modules)
    shares = damage_shares((module.name for module in modules), damage)
    scores = module_scores(modules, shares, config)
    candidates = by_score(affordable(modules, config), scores)
    order = correctable(candidates, energy_curves, config)
    reasons = {module.name: _why_not(module, shares, config) for module in modules}
    reasons |= {module.name: "the calibration tokens show no error of it" for module in candidates}
    if not order:
        why = _why_nothing(modules, shares, config, candidates)
        return conclude(
            modules, config, {}, reasons, selected_count=0, common_rank=0, damage=shares, message=why
        )
    chosen = order[: _selected_count(order, shares, config)]
    rank = config.min_rank
    left = config.budget_bytes - common_bytes(chosen, rank, config)
    ranks, left = spend(chosen, common_ranks(chosen, rank, config), scores, energy_curves, config, left)
    further, _ = spend(order[len(chosen) :], {}, scores, energy_curves, config, left)
    ranks |= further
    for place, module in enumerate(order):
        reasons[module.name] = _why(place, ranks[module.name], len(chosen))
    return conclude(
        modules, config, ranks, reasons, selected_count=len(chosen), common_rank=rank, damage=shares
    )


def module_scores(
    modules: Sequence[ModuleShape], shares: DamageShares, config: AllocationConfig
) -> dict[str, float]:
    """Damage share times (mean cost / cost)^λ; for λ = 0 the share itself."""
    costs = {module.name: decode_cost_us(module, config.min_rank, config) for module in modules}
    mean = math.fsum(costs.values()) / max(1, len(costs))
    return {name: shares.shares[name] * (mean / cost) ** config.cost_weight for name, cost in costs.items()}


def by_score(modules: Sequence[ModuleShape], scores: Mapping[str, float]) -> list[ModuleShape]:
    """Modules with a positive score, the highest first; equal ones by name."""
    positive = [module for module in modules if scores[module.name] > 0]
    return sorted(positive, key=lambda module: (-scores[module.name], module.name))


def _selected_count(order: Sequence[ModuleShape], shares: DamageShares, config: AllocationConfig) -> int:
    count = math.ceil(config.coverage * shares.effective_count - _ROUNDING)
    count = min(max(count, 1), len(order))
    while common_bytes(order[:count], config.min_rank, config) > config.budget_bytes:
        count -= 1  # at 1 it fits: every module of the order is affordable alone
    top = config.max_rank // config.rank_quantum * config.rank_quantum
    while count < len(order) and common_bytes(order[: count + 1], top, config) <= config.budget_bytes:
        count += 1
    return count


def _why_nothing(
    modules: Sequence[ModuleShape],
    shares: DamageShares,
    config: AllocationConfig,
    candidates: Sequence[ModuleShape],
) -> str:
    if shares.effective_count == 0:
        return "no module is damaged; nothing needs a compensator"
    if candidates:
        return "the calibration tokens show no error of any module; give more or other sequences"
    smallest = min((config.bytes_of(module, config.min_rank) for module in modules), default=0)
    return (
        f"the budget of {config.budget_bytes} bytes holds no compensator: the smallest takes {smallest} "
        f"at rank {config.min_rank}; raise the budget or lower min_rank or factor_bits"
    )


def _why_not(module: ModuleShape, shares: DamageShares, config: AllocationConfig) -> str:
    if shares.shares[module.name] == 0:
        return "no damage"
    if config.rank_limit(module) < config.min_rank:
        return f"{module.outputs} x {module.inputs} is too small for rank {config.min_rank}"
    price = config.bytes_of(module, config.min_rank)
    return f"{price} bytes at rank {config.min_rank} exceed the budget"


def _why(place: int, rank: int, selected_count: int) -> str:
    where = f"place {place + 1} by damage and cost"
    if place < selected_count:
        return f"{where}: rank {rank}"
    took = f"rank {rank} from what was left" if rank else "nothing was left"
    return f"{where}, after the {selected_count} selected: {took}"
