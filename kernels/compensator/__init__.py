"""Low-rank correction of a quantised linear layer, scaled token by token by a gate."""

from kernels.compensator.reference import GateWeights, compensate

__all__ = ["GateWeights", "compensate"]
