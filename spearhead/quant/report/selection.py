"""Which modules were damaged, and which of them got a compensator of what rank."""

import itertools
from dataclasses import dataclass
from enum import StrEnum

from spearhead.errors import CalibrationError
from spearhead.quant.report.checks import check_at_least, check_share


class DamageKind(StrEnum):
    """How the damage of quantising one module alone is measured."""

    CKA_FINAL = "cka_final"
    CKA_BLOCK = "cka_block"
    KL = "kl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """One measurement of one module.

    Attributes:
        kind: What was compared.
        value: 1 - CKA, or nats a token; at least 0.
    """

    kind: DamageKind
    value: float

    def __post_init__(self) -> None:
        check_at_least("damage.value", self.value, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleRow:
    """One linear module.

    Attributes:
        name: Full name, such as ``model.layers.3.mlp.down_proj``.
        layer: Index from 0.
        projection: Its name within a layer, such as ``mlp.down_proj``; unique there.
        output_width: N.
        input_width: K.
        damage: One entry a kind that was measured.
        share: Its part of the damage of all modules, by the kind that selected.
        rank: Of its compensator; 0 = none.
        compensator_bytes: Stored bytes of its compensator.
        reason: A sentence: why this rank.
        energy: Part of the output error's energy (on calibration data) that the rank captures;
            ``None`` = not computed.
    """

    name: str
    layer: int
    projection: str
    output_width: int
    input_width: int
    damage: tuple[Damage, ...]
    share: float
    rank: int
    compensator_bytes: int
    reason: str
    energy: float | None

    def __post_init__(self) -> None:
        for field, least in (("layer", 0), ("output_width", 1), ("input_width", 1), ("rank", 0)):
            check_at_least(f"{self.name}.{field}", getattr(self, field), least)
        check_at_least(f"{self.name}.compensator_bytes", self.compensator_bytes, 0)
        check_share(f"{self.name}.share", self.share)
        check_share(f"{self.name}.energy", self.energy)

    def damage_by(self, kind: DamageKind) -> float | None:
        """The measurement of one kind; ``None`` = not measured."""
        return next((damage.value for damage in self.damage if damage.kind is kind), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCorrelation:
    """Spearman's coefficient between two kinds of damage over all modules."""

    first: DamageKind
    second: DamageKind
    spearman: float

    def __post_init__(self) -> None:
        check_share("correlations.spearman", abs(self.spearman))


@dataclass(frozen=True, slots=True, kw_only=True)
class Spectrum:
    """How damage spreads over modules, and what followed for their number.

    Attributes:
        kind: The kind of damage that selected.
        shares: One a module, falling; they sum to 1, or all are 0.
        entropy_nats: H = -sum(p ln p).
        entropy_normalized: H / ln M, from 0 to 1.
        effective_count: k_eff = exp(H).
        chosen_count: Modules with a compensator.
        correlations: Between the kinds that were measured.
    """

    kind: DamageKind
    shares: tuple[float, ...]
    entropy_nats: float
    entropy_normalized: float
    effective_count: float
    chosen_count: int
    correlations: tuple[RankCorrelation, ...]

    def __post_init__(self) -> None:
        if any(later > earlier for earlier, later in itertools.pairwise(self.shares)):
            raise CalibrationError("report field spectrum.shares rises; sort it, largest first")
        for share in self.shares:
            check_share("spectrum.shares", share)
        check_at_least("spectrum.entropy_nats", self.entropy_nats, 0)
        check_share("spectrum.entropy_normalized", self.entropy_normalized)
        check_at_least("spectrum.effective_count", self.effective_count, 0)
        check_at_least("spectrum.chosen_count", self.chosen_count, 0)
