"""What an allocation may spend, and what a compensator costs at run time."""

from dataclasses import dataclass, field

from spearhead.errors import CalibrationError
from spearhead.model.checkpoint.factor_codec import FactorBits
from spearhead.quant.allocation.module_bytes import ModuleShape, compensator_bytes
from spearhead.quant.factor_precision import FACTOR_BITS


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeCosts:
    """What makes a compensator slow while one token is decoded. Defaults are of the H100's class.

    Attributes:
        fused_us: Fixed cost of a compensator that is fused into its module's kernel.
        memory_bytes_per_us: Bandwidth at which factors are read.
        exchange_us: Fixed cost of an exchange between tensor-parallel ranks.
        link_bytes_per_us: Bandwidth of the exchange.
    """

    fused_us: float = 0.15
    memory_bytes_per_us: float = 3.0e6
    exchange_us: float = 1.5
    link_bytes_per_us: float = 3.0e5


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationConfig:
    """How a budget is spent.

    Attributes:
        budget_bytes: β, for all compensators together, as stored.
        factor_bits: How A and B are stored.
        gated: Count the bytes of gates.
        gate_min_rank: Compensators of lower rank get no gate.
        min_rank: Least rank of a module that gets a compensator at all; a multiple of ``rank_quantum``.
        max_rank: Largest rank.
        rank_quantum: Ranks are multiples of it.
        coverage: κ: how many modules are selected, over the effective number of damaged ones.
        cost_weight: λ: 0 ranks modules by damage alone, 1 by damage per microsecond.
        tensor_parallel_size: Over how many devices modules are cut; only costs depend on it.
        costs: Of the hardware.
    """

    budget_bytes: int
    factor_bits: FactorBits = 16
    gated: bool = False
    gate_min_rank: int = 1
    min_rank: int = 1
    max_rank: int = 64
    rank_quantum: int = 1
    coverage: float = 2.0
    cost_weight: float = 0.25
    tensor_parallel_size: int = 1
    costs: DecodeCosts = field(default_factory=DecodeCosts)

    def __post_init__(self) -> None:
        self._require("budget_bytes", self.budget_bytes >= 0, "at least 0")
        self._require("factor_bits", self.factor_bits in FACTOR_BITS, "16, 8 or 4")
        self._require("gate_min_rank", self.gate_min_rank >= 1, "at least 1")
        self._require("rank_quantum", self.rank_quantum >= 1, "at least 1")
        quantum = self.rank_quantum
        whole = self.min_rank >= 1 and self.min_rank % quantum == 0
        self._require("min_rank", whole, f"a positive multiple of rank_quantum {quantum}")
        self._require("max_rank", self.max_rank >= self.min_rank, f"at least min_rank {self.min_rank}")
        self._require("coverage", 0.0 < self.coverage < float("inf"), "positive")
        self._require("cost_weight", 0.0 <= self.cost_weight < float("inf"), "at least 0")
        self._require("tensor_parallel_size", self.tensor_parallel_size >= 1, "at least 1")

    def _require(self, name: str, holds: bool, limit: str) -> None:
        if not holds:
            raise CalibrationError(f"allocation: {name} is {getattr(self, name)!r}; it must be {limit}")

    def bytes_of(self, module: ModuleShape, rank: int) -> int:
        """Stored bytes of one compensator."""
        return compensator_bytes(module, rank, factor_bits=self.factor_bits, gated=self.gates(rank))

    def gates(self, rank: int) -> bool:
        """Whether a compensator of this rank gets a gate."""
        return self.gated and rank >= self.gate_min_rank

    def rank_limit(self, module: ModuleShape) -> int:
        """Largest multiple of the quantum that module and ``max_rank`` allow; may be below ``min_rank``."""
        limit = min(self.max_rank, module.outputs, module.inputs)
        return limit // self.rank_quantum * self.rank_quantum


def decode_cost_us(module: ModuleShape, rank: int, config: AllocationConfig) -> float:
    """Time that one compensator adds to one decoded token.

    Before the gate of a row-parallel module its codes must be summed over the ranks, since the gate is not
    linear; they ride on the exchange that the module's output needs anyway.
    """
    size, costs = config.tensor_parallel_size, config.costs
    inputs = module.inputs / size if module.row_parallel else module.inputs
    outputs = module.outputs if module.row_parallel else module.outputs / size
    cost = costs.fused_us + 2 * rank * (inputs + outputs) / costs.memory_bytes_per_us
    if module.row_parallel and size > 1:
        cost += costs.exchange_us + 2 * rank * (size - 1) / costs.link_bytes_per_us
    return cost
