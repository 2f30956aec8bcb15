"""What an allocation decided."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spearhead.quant.allocation.config import AllocationConfig
from spearhead.quant.allocation.damage_share import DamageShares
from spearhead.quant.allocation.module_bytes import ModuleShape, device_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """Ranks under a budget.

    Attributes:
        ranks: Module to rank, at least 1; modules without a compensator are absent. In the order given.
        selected_count: k, modules that the rule selected; what is left of the budget may add a few.
        common_rank: r, which all of them got before the rest was spent; 0 = none.
        damage: How damage is spread; ``None`` where the rule does not look at it.
        budget_bytes: β.
        spent_bytes: Stored bytes of all compensators.
        device_bytes: Bytes that one tensor-parallel rank holds.
        reasons: Every module to why it got what it got.
        message: Why nothing was selected; empty otherwise.
    """

    ranks: Mapping[str, int]
    selected_count: int
    common_rank: int
    damage: DamageShares | None
    budget_bytes: int
    spent_bytes: int
    device_bytes: int
    reasons: Mapping[str, str]
    message: str = ""

    @property
    def unspent_bytes(self) -> int:
        """What no compensator could take."""
        return self.budget_bytes - self.spent_bytes


def conclude(
    modules: Sequence[ModuleShape],
    config: AllocationConfig,
    ranks: Mapping[str, int],
    reasons: Mapping[str, str],
    *,
    selected_count: int,
    common_rank: int,
    damage: DamageShares | None = None,
    message: str = "",
) -> Allocation:
    """Adds up what was decided."""
    placed = [(module, ranks[module.name]) for module in modules if ranks.get(module.name)]
    return Allocation(
        ranks={module.name: rank for module, rank in placed},
        selected_count=selected_count,
        common_rank=common_rank,
        damage=damage,
        budget_bytes=config.budget_bytes,
        spent_bytes=sum(config.bytes_of(module, rank) for module, rank in placed),
        device_bytes=sum(
            device_bytes(
                module,
                rank,
                factor_bits=config.factor_bits,
                gated=config.gates(rank),
                tensor_parallel_size=config.tensor_parallel_size,
            )
            for module, rank in placed
        ),
        reasons=reasons,
        message=message,
    )
