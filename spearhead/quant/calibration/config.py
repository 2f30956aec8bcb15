"""What a calibration does, and the two recipes: one for a GPU, one for two processor cores."""

import math
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from spearhead.errors import CalibrationError
from spearhead.model.checkpoint.factor_codec import FactorBits
from spearhead.quant.damage import DAMAGE_KINDS, DamageKind
from spearhead.quant.factor_precision import FACTOR_BITS
from spearhead.quant.self_sampling import SelfSamplingConfig
from spearhead.quant.training import TrainingConfig

Recipe = Literal["full", "reduced"]
GateChoice = Literal["auto", "off", "force"]

LEAST_DECIDING = 6
"""Sequences that a decision needs: with fewer, chance alone gives differences of one sign too often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationConfig:
    """Everything that decides which compensators come out, machine apart.

    Attributes:
        budget_share: Bytes of all compensators over those of the served 4-bit weights.
        budget_bytes: The same in bytes; 0 = ``budget_share`` decides.
        factor_bits: How A and B are stored.
        sampling: The text that the model writes; its seed also decides which sequences are held out.
        holdout: Share of the sequences that only decide.
        moments_sequences: Sequences that statistics are taken from.
        skip_first: Tokens at the start of each document that do not count (attention sinks).
        damage: What decides how badly a module was hit.
        damage_tokens: Tokens that damage is measured on.
        cost_weight: λ: 0 ranks modules by damage alone, 1 by damage per microsecond.
        coverage: κ: selected modules over the effective number of damaged ones.
        tensor_parallel_size: Devices that costs are counted for.
        min_rank: Least rank of a module that gets a compensator.
        max_rank: Largest rank.
        rank_quantum: Ranks are multiples of it.
        training: Of factors, and of gates.
        gate: ``auto`` keeps gates that win, ``force`` also those that do not, ``off`` trains none: they take
            a percent of what is left, and two dependent products of every token.
        gate_min_rank: Compensators of lower rank get no gate: there is nothing to weigh against each other.
        include_w8: Also mend modules in 8 bits, which lose next to nothing.
        draws: Resamples of the bootstrap that decides.
        seed: Of gates and resamples; :meth:`with_seed` sets every seed.
    """

    budget_share: float = 0.01
    budget_bytes: int = 0
    factor_bits: FactorBits = 16
    sampling: SelfSamplingConfig = field(
        default_factory=lambda: SelfSamplingConfig(sequence_count=12000, length=256, batch_size=6000)
    )
    holdout: float = 0.1
    moments_sequences: int = 512
    skip_first: int = 1
    damage: DamageKind = "cka_final"
    damage_tokens: int = 2048
    cost_weight: float = 0.25
    coverage: float = 2.0
    tensor_parallel_size: int = 1
    min_rank: int = 1
    max_rank: int = 64
    rank_quantum: int = 1
    training: TrainingConfig = field(default_factory=lambda: TrainingConfig(steps=800, evaluate_every=100))
    gate: GateChoice = "off"
    gate_min_rank: int = 4
    include_w8: bool = False
    draws: int = 2000
    seed: int = 0

    def __post_init__(self) -> None:
        self._require("budget_share", 0 < self.budget_share < 1, "above 0 and below 1")
        self._require("budget_bytes", self.budget_bytes >= 0, "at least 0")
        self._require("factor_bits", self.factor_bits in FACTOR_BITS, "16, 8 or 4")
        self._require("damage", self.damage in DAMAGE_KINDS, ", ".join(DAMAGE_KINDS))
        self._require("gate", self.gate in ("auto", "off", "force"), "auto, off or force")
        for name in ("moments_sequences", "damage_tokens", "skip_first", "gate_min_rank", "draws"):
            self._require(name, getattr(self, name) >= 1, "at least 1")
        self._require("holdout", 0 < self.holdout < 1, "above 0 and below 1")
        count = self.sampling.sequence_count
        if round(count * self.holdout) <= LEAST_DECIDING:
            least = math.ceil((LEAST_DECIDING + 1) / self.holdout)
            raise CalibrationError(
                f"calibration: {count} sequences hold out {round(count * self.holdout)}, which cannot "
                f"decide; give at least {least}"
            )

    def _require(self, name: str, holds: bool, limit: str) -> None:
        if not holds:
            raise CalibrationError(f"calibration: {name} is {getattr(self, name)!r}; it must be {limit}")

    @classmethod
    def of_recipe(cls, recipe: Recipe, seed: int = 0) -> "CalibrationConfig":
        """``full``, or ``reduced``: a 135M model within an hour on two processor cores."""
        if recipe == "full":
            return cls().with_seed(seed)
        return cls(
            sampling=SelfSamplingConfig(sequence_count=192, length=256, batch_size=96),
            moments_sequences=128,
            damage_tokens=768,
            training=TrainingConfig(steps=60, sequences_per_step=8, evaluate_every=20, chunk_tokens=512),
        ).with_seed(seed)

    def with_seed(self, seed: int) -> "CalibrationConfig":
        """The same with every seed set."""
        return replace(
            self,
            seed=seed,
            sampling=replace(self.sampling, seed=seed),
            training=replace(self.training, seed=seed),
        )

    def budget(self, w4_bytes: int) -> int:
        """Bytes that all compensators may take beside so many bytes of 4-bit weights."""
        return self.budget_bytes or int(self.budget_share * w4_bytes)

    def fields(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationSettings:
    """How a calibration runs on this machine.

    Attributes:
        device: ``cpu``, ``cuda`` or ``cuda:1``.
        dtype: Of sampling and training: ``float32``, ``bfloat16``, or ``auto``: bfloat16 where the hardware
            multiplies it. Statistics and decisions are always float32.
        memory_bytes: For layers, and hidden states that training learns from; what does not fit is read from
            the disk; 0 = most of what is free.
        tokens_at_once: In one batch of statistics and scores; 0 = 2,048, on a GPU 16,384.
    """

    device: str = "cpu"
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    memory_bytes: int = 0
    tokens_at_once: int = 0
