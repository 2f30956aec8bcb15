"""Where compensators go and how large they are, under a budget of bytes. Pure: numbers in, ranks out."""

from spearhead.quant.allocation.baselines import (
    greedy_waterfilling,
    grid,
    grid_points,
    random_modules,
    uniform_rank,
)
from spearhead.quant.allocation.config import AllocationConfig, DecodeCosts, decode_cost_us
from spearhead.quant.allocation.damage_share import DamageShares, damage_shares
from spearhead.quant.allocation.entropy_rule import allocate
from spearhead.quant.allocation.module_bytes import ModuleShape, compensator_bytes, device_bytes
from spearhead.quant.allocation.result import Allocation
from spearhead.quant.allocation.spending import EnergyCurve

__all__ = [
    "Allocation",
    "AllocationConfig",
    "DamageShares",
    "DecodeCosts",
    "EnergyCurve",
    "ModuleShape",
    "allocate",
    "compensator_bytes",
    "damage_shares",
    "decode_cost_us",
    "device_bytes",
    "greedy_waterfilling",
    "grid",
    "grid_points",
    "random_modules",
    "uniform_rank",
]
