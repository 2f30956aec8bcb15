"""How damage is spread over modules: shares, entropy, and the effective number of damaged modules."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from spearhead.errors import CalibrationError


@dataclass(frozen=True, slots=True, kw_only=True)
class DamageShares:
    """Damage as a distribution over M modules.

    Attributes:
        shares: Module to p = d / Σd; all 0 without damage.
        entropy_nats: -Σ p ln p.
        normalised_entropy: The same over ln M: 0 = one module has it all, 1 = all have the same.
        effective_count: exp(entropy), from 1 to M: how many equally damaged modules would give this entropy;
            0 without damage.
    """

    shares: Mapping[str, float]
    entropy_nats: float
    normalised_entropy: float
    effective_count: float


def damage_shares(names: Iterable[str], damage: Mapping[str, float]) -> DamageShares:
    """The distribution of damage, whatever its unit and the order of modules.

    Raises:
        CalibrationError: A module without damage value, or one that is not finite or negative; names it.
    """
    values = {name: _checked(name, damage) for name in names}
    largest = max(values.values(), default=0.0)
    if largest == 0.0:
        return DamageShares(
            shares=dict.fromkeys(values, 0.0), entropy_nats=0.0, normalised_entropy=0.0, effective_count=0.0
        )
    relative = {name: value / largest for name, value in values.items()}  # sums cannot overflow
    total = math.fsum(relative.values())
    shares = {name: value / total for name, value in relative.items()}
    entropy = max(0.0, -math.fsum(p * math.log(p) for p in shares.values() if p > 0))
    return DamageShares(
        shares=shares,
        entropy_nats=entropy,
        normalised_entropy=min(1.0, entropy / math.log(len(values))) if len(values) > 1 else 0.0,
        effective_count=math.exp(entropy),
    )


def _checked(name: str, damage: Mapping[str, float]) -> float:
    if name not in damage:
        raise CalibrationError(f"the damage of {name} was not measured; measure it again")
    if not (math.isfinite(damage[name]) and damage[name] >= 0):
        raise CalibrationError(
            f"the damage of {name} is {damage[name]}; it must be finite and at least 0. Its weights or the "
            "calibration tokens are damaged: measure it again"
        )
    return damage[name]
