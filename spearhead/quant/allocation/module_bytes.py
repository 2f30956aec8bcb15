"""Bytes of a compensator as it is stored."""

import math
from dataclasses import dataclass

from spearhead.model.checkpoint.factor_codec import FactorBits
from spearhead.quant.student import gate_width

_FLOAT_BYTES = 2  # bfloat16, of gates too
_SCALE_BYTES = 4
_WORD_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleShape:
    """A linear module that may get a compensator.

    Attributes:
        name: Full module name.
        outputs: N.
        inputs: K.
        row_parallel: Tensor parallelism cuts its inputs (attention output, MLP down), not its outputs.
    """

    name: str
    outputs: int
    inputs: int
    row_parallel: bool


def compensator_bytes(module: ModuleShape, rank: int, *, factor_bits: FactorBits, gated: bool) -> int:
    """Bytes of A ``(rank, K)``, B ``(N, rank)`` and, if gated, the gate's four tensors.

    16 bits are bfloat16. 8 and 4 bits are codes with a float32 scale for each rank component of A and of B;
    4-bit codes fill int32 words, one component after the other, each padded to a whole word.
    """
    factors = _factor_bytes(module.inputs, factor_bits) + _factor_bytes(module.outputs, factor_bits)
    return rank * factors + (_gate_bytes(rank) if gated else 0)


def device_bytes(
    module: ModuleShape, rank: int, *, factor_bits: FactorBits, gated: bool, tensor_parallel_size: int
) -> int:
    """Bytes that one of ``tensor_parallel_size`` devices holds: one factor is cut, the other is not."""
    a, b = _factor_bytes(module.inputs, factor_bits), _factor_bytes(module.outputs, factor_bits)
    cut, whole = (a, b) if module.row_parallel else (b, a)
    factors = rank * (math.ceil(cut / tensor_parallel_size) + whole)
    return factors + (_gate_bytes(rank) if gated else 0)


def _factor_bytes(width: int, factor_bits: FactorBits) -> int:
    """Of one rank component."""
    if factor_bits == 16:
        return _FLOAT_BYTES * width
    if factor_bits == 8:
        return width + _SCALE_BYTES
    return _WORD_BYTES * math.ceil(width / 8) + _SCALE_BYTES


def _gate_bytes(rank: int) -> int:
    if rank == 0:
        return 0
    hidden = gate_width(rank)
    return _FLOAT_BYTES * (2 * rank * hidden + hidden + rank)
