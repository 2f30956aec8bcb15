"""Low-rank correction of a quantised linear layer, scaled token by token by a gate."""

from kernels.compensator.layout import Factors, GpuCompensator, GpuGate, pack_compensators
from kernels.compensator.reference import GATE_INPUT_LIMIT, GateWeights, compensate

__all__ = [
    "GATE_INPUT_LIMIT",
    "Factors",
    "GateWeights",
    "GpuCompensator",
    "GpuGate",
    "compensate",
    "pack_compensators",
]
