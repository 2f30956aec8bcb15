"""Low-rank correction of a quantised linear layer, scaled token by token by a gate."""

from kernels.compensator.reference import GATE_INPUT_LIMIT, GateWeights, compensate

__all__ = ["GATE_INPUT_LIMIT", "GateWeights", "compensate"]
