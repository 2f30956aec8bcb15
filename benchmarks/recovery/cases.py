"""What is measured: quantisers, budgets, bits of factors, seeds."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from spearhead.model.checkpoint.factor_codec import FactorBits
from spearhead.quant.calibration.config import CalibrationConfig, GateChoice
from spearhead.quant.factor_precision import FACTOR_BITS
from spearhead.quant.self_sampling import SelfSamplingConfig
from spearhead.quant.training import TrainingConfig

BUDGETS = (0.005, 0.01, 0.022, 0.04)
SEEDS = (0, 1, 2)
BASES = {
    "rtn": ("channel", "rtn"),
    "rtn-clip": ("channel", "rtn-clip"),
    "gptq": ("channel", "gptq"),
    "gptq-clip": ("channel", "gptq-clip"),
    "awq": ("channel", "awq"),
    "awq-clip": ("channel", "awq-clip"),
    "omniquant": ("channel", "omniquant"),
    "rtn, group 64": ("group64", "rtn"),
}
"""Name to (scheme, method)."""

BEST_BASES = ("gptq-clip",)

GRID_RANKS = (1, 2, 3, 4, 6, 8, 12, 16, 24)


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much work a run is.

    Attributes:
        recipe: The calibration that a user would get.
        long_steps: Updates of the best recipe.
        sweep_steps: Updates where many cases are compared.
        segments: Of each text in sweeps; some headline cases and the best take all of them. 0 = all.
        whole: Whether any case takes whole texts.
        bits: Of factors in the headline.
        budgets: Of the headline.
        baseline_budgets: At which quality is drawn against bytes; each takes three trainings and more.
        random_seeds: Of random placements there; each takes one training more.
    """

    recipe: CalibrationConfig
    long_steps: int
    sweep_steps: int
    segments: int
    whole: bool = True
    bits: Sequence[FactorBits] = FACTOR_BITS
    budgets: Sequence[float] = (0.01, 0.022)
    baseline_budgets: Sequence[float] = BUDGETS
    random_seeds: tuple[int, ...] = (0,)


SIZES = {
    "full": Size(
        recipe=CalibrationConfig.of_recipe("full"),
        long_steps=2000,
        sweep_steps=400,
        segments=24,
        bits=(16, 4),
        baseline_budgets=(0.01, 0.022),
    ),
    "reduced": Size(
        recipe=CalibrationConfig.of_recipe("reduced"),
        long_steps=120,
        sweep_steps=60,
        segments=8,
        whole=False,
        bits=(16,),
        budgets=(0.01,),
        baseline_budgets=(0.01,),
    ),
    # Proves the command, not the numbers.
    "smoke": Size(
        recipe=CalibrationConfig(
            sampling=SelfSamplingConfig(sequence_count=72, length=32, batch_size=72),
            moments_sequences=8,
            damage_tokens=64,
            training=TrainingConfig(steps=2, sequences_per_step=2, evaluate_every=1),
            draws=50,
            gate_min_rank=1,
        ),
        long_steps=3,
        sweep_steps=1,
        segments=1,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One calibration.

    Attributes:
        section: Which table it belongs to.
        base: Of :data:`BASES`.
        budget: Share of the 4-bit weights.
        factor_bits: How factors are stored.
        gate: Whether gates are trained.
        seed: Of samples, order and gates.
        steps: Updates; 0 = the recipe's.
        whole_texts: All segments instead of the sweep's.
    """

    section: str
    base: str = "rtn"
    budget: float = 0.01
    factor_bits: FactorBits = 16
    gate: GateChoice = "off"
    seed: int = 0
    steps: int = 0
    whole_texts: bool = False

    @property
    def name(self) -> str:
        """For tables."""
        parts = [self.base, f"{100 * self.budget:g}%", f"{self.factor_bits} bits"]
        parts += [f"seed {self.seed}"] if self.seed else []
        parts += [f"{self.steps} steps"] if self.steps else []
        return ", ".join(parts)

    def config(self, size: Size) -> CalibrationConfig:
        """The recipe with what this case changes. Samples are those of seed 0: only training differs."""
        steps = self.steps or size.recipe.training.steps
        return replace(
            size.recipe,
            budget_share=self.budget,
            factor_bits=self.factor_bits,
            gate=self.gate,
            seed=self.seed,
            training=replace(size.recipe.training, seed=self.seed, steps=steps),
        )


def cases(section: str, size: Size) -> list[Case]:
    """The calibrations of a section.

    Raises:
        KeyError: No such section.
    """
    long, sweep = size.long_steps, size.sweep_steps
    return {
        "headline": [
            Case(section="headline", budget=budget, factor_bits=bits, whole_texts=bits == 16 and size.whole)
            for bits in size.bits
            for budget in size.budgets
        ],
        "best": [
            Case(section="best", base=base, budget=budget, factor_bits=4, steps=long, whole_texts=size.whole)
            for base in BEST_BASES
            for budget in (0.01, 0.022)
        ],
        "budgets": [Case(section="budgets", budget=budget, steps=sweep) for budget in BUDGETS],
        "bases": [Case(section="bases", base=base, steps=sweep) for base in BASES],
        "gates": [
            Case(section="gates", budget=0.022, factor_bits=8, gate="force", seed=seed, steps=sweep)
            for seed in SEEDS
        ],
        "baselines": [Case(section="baselines", steps=sweep)],
    }[section]


SECTIONS = ("headline", "best", "budgets", "bases", "gates", "baselines")
