"""What was measured."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

from spearhead.quant.damage.rank_correlation import spearman

DamageKind = Literal["cka_final", "cka_block", "kl"]
"""1 - CKA of the final hidden state, 1 - CKA of the residual stream after the module's block, or the mean
KL divergence of next-token distributions in nats a token."""

DAMAGE_KINDS: tuple[DamageKind, ...] = ("cka_final", "cka_block", "kl")


@dataclass(frozen=True, slots=True, kw_only=True)
class DamageReport:
    """Damage of each module when it alone is quantised.

    Attributes:
        kind: The measure that selects modules.
        values: Measure to module to damage, at least 0; every measure has the same modules.
        token_count: Tokens that were compared.
    """

    kind: DamageKind
    values: Mapping[DamageKind, Mapping[str, float]]
    token_count: int

    @property
    def by_module(self) -> Mapping[str, float]:
        """Module to damage by the measure that selects."""
        return self.values[self.kind]

    def correlations(self) -> dict[tuple[DamageKind, DamageKind], float | None]:
        """Spearman's correlation of every two measures, ``None`` where it is not defined."""
        return {
            (first, second): spearman(
                list(self.values[first].values()),
                [self.values[second][module] for module in self.values[first]],
            )
            for first, second in combinations(self.values, 2)
        }
