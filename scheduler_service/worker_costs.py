"""What the workers' time costs, as one policy sees it."""

from dataclasses import dataclass

from scheduler_service.latency_table import LatencyTable
from scheduler_service.step_cost import StepCost
from scheduler_service.step_plan import Correction, PolicyConfig
from spearhead.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCosts:
    """The cost models of the workers with their corrections, and the price of reaching them.

    Attributes:
        target: The verifier's.
        draft: The drafter's; None = not measured.
        target_factor: Measured over predicted time of the verifier.
        draft_factor: Measured over predicted time of the drafter.
        hop_s: One round trip, seconds.
    """

    target: StepCost
    draft: StepCost | None
    target_factor: float
    draft_factor: float
    hop_s: float


def worker_costs(
    table: LatencyTable | None, config: PolicyConfig, correction: Correction
) -> WorkerCosts | None:
    """The costs that the policy plans with.

    Args:
        table: Measured latencies; may be None for ``static``.
        config: The policy.
        correction: Factors on the predictions.

    Returns:
        ``None`` without a table.

    Raises:
        ConfigError: The policy needs a table and there is none.
    """
    if table is None:
        if config.kind == "static":
            return None
        raise ConfigError(
            f"policy.kind is {config.kind!r} and there is no latency table; "
            'run `spearhead profile`, or set policy.kind = "static"'
        )
    linear = config.kind == "linear"
    draft = table.draft
    return WorkerCosts(
        target=table.target.linear_cost if linear else table.target.cost,
        draft=None if draft is None else draft.linear_cost if linear else draft.cost,
        target_factor=correction.target,
        draft_factor=correction.draft,
        hop_s=config.hop_s,
    )
