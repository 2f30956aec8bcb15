"""Low-rank correction of a quantised linear layer, scaled token by token by a gate."""

from kernels.compensator.layout import Factors, GpuCompensator, GpuGate, pack_compensators
from kernels.compensator.reference import GateWeights, compensate, gate_of

__all__ = [
    "Factors",
    "GateWeights",
    "GpuCompensator",
    "GpuGate",
    "compensate",
    "gate_of",
    "pack_compensators",
]
