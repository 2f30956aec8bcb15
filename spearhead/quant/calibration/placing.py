"""Stage 4: which modules get a compensator, of what rank. Pure."""

from collections.abc import Mapping, Sequence

from spearhead.errors import CalibrationError
from spearhead.quant.allocation import Allocation, AllocationConfig, ModuleShape, allocate
from spearhead.quant.calibration.config import CalibrationConfig
from spearhead.quant.calibration.fitting import ClosedForms
from spearhead.quant.calibration.subject import Subject
from spearhead.quant.damage import DamageReport
from spearhead.quant.student import Factors


def allocation_config(config: CalibrationConfig, w4_bytes: int) -> AllocationConfig:
    """What may be spent beside so many bytes of 4-bit weights.

    Gates are counted where they may come, so that every rung fits into the budget at the same ranks.
    """
    return AllocationConfig(
        budget_bytes=config.budget(w4_bytes),
        factor_bits=config.factor_bits,
        gated=config.gate != "off",
        gate_min_rank=config.gate_min_rank,
        min_rank=config.min_rank,
        max_rank=config.max_rank,
        rank_quantum=config.rank_quantum,
        coverage=config.coverage,
        cost_weight=config.cost_weight,
        tensor_parallel_size=config.tensor_parallel_size,
    )


def check_budget(modules: Sequence[ModuleShape], config: CalibrationConfig, w4_bytes: int) -> None:
    """Refuses a budget that no compensator fits into, before any work.

    Raises:
        CalibrationError: The budget, and what the smallest compensator takes.
    """
    limits = allocation_config(config, w4_bytes)
    smallest = min(limits.bytes_of(module, limits.min_rank) for module in modules)
    if smallest > limits.budget_bytes:
        raise CalibrationError(
            f"the budget of {limits.budget_bytes} bytes holds no compensator: the smallest takes {smallest} "
            f"at rank {limits.min_rank}; raise it with --budget, or lower the bits of factors"
        )


def place(
    subject: Subject, damage: DamageReport, forms: ClosedForms, config: CalibrationConfig
) -> Allocation:
    """Ranks under the budget.

    Raises:
        CalibrationError: The budget holds no compensator, or nothing is damaged.
    """
    allocation = allocate(
        subject.modules,
        damage.by_module,
        {name: form.residual for name, form in forms.by_module.items()},
        allocation_config(config, subject.artefact.stored_bytes),
    )
    if not start_factors(forms, allocation.ranks):
        raise CalibrationError(f"{allocation.message or 'no module has an error to correct'}")
    return allocation


def start_factors(forms: ClosedForms, ranks: Mapping[str, int]) -> dict[str, Factors]:
    """Closed forms at some ranks; a module whose error has no rank at all is left out."""
    started: dict[str, Factors] = {}
    for module, rank in ranks.items():
        form = forms.by_module[module]
        kept = min(rank, len(form.a))
        if kept:
            started[module] = Factors(a=form.a[:kept].contiguous(), b=form.b[:, :kept].contiguous())
    return started
