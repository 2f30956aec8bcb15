"""Factors as they will be stored and served, and back."""

from collections.abc import Mapping

import torch
from torch import Tensor

from spearhead.model.checkpoint.compensator_files import StoredCompensator
from spearhead.model.checkpoint.factor_codec import EncodedFactor, FactorBits, encode_factor
from spearhead.model.weights import Gate, PlacedCompensator
from spearhead.quant.student import Factors

_GATE_PARTS = ("w1", "b1", "w2", "b2")


def encode(factors: Mapping[str, Factors], bits: FactorBits) -> dict[str, StoredCompensator]:
    """Rounds factors to what is stored; gates to bfloat16.

    Raises:
        CheckpointError: NaN or infinity.
    """
    return {
        module: StoredCompensator(
            a=encode_factor(one.a, bits=bits),
            b=encode_factor(one.b.T, bits=bits),
            gate=None if one.gate is None else _gate(one.gate),
        )
        for module, one in factors.items()
    }


def served(
    factors: Mapping[str, Factors], bits: FactorBits, device: torch.device
) -> dict[str, PlacedCompensator]:
    """What a server computes with once these factors were stored."""
    return {
        module: stored.decode().placed(row_offset=0, device=device)
        for module, stored in encode(factors, bits).items()
    }


def stored_bytes(factors: Mapping[str, Factors], bits: FactorBits) -> int:
    """Bytes of all tensors on the disk."""
    return sum(module_bytes(factors, bits).values())


def module_bytes(factors: Mapping[str, Factors], bits: FactorBits) -> dict[str, int]:
    """The same by module."""
    return {module: _bytes(stored) for module, stored in encode(factors, bits).items()}


def to_tensors(factors: Mapping[str, Factors]) -> dict[str, Tensor]:
    """By ``<module>:<part>``."""
    tensors: dict[str, Tensor] = {}
    for module, one in factors.items():
        tensors |= {f"{module}:a": one.a, f"{module}:b": one.b}
        if one.gate is not None:
            tensors |= {
                f"{module}:{part}": tensor for part, tensor in zip(_GATE_PARTS, one.gate, strict=True)
            }
    return tensors


def from_tensors(tensors: Mapping[str, Tensor], modules: list[str]) -> dict[str, Factors]:
    """What :func:`to_tensors` made, in the order of ``modules``."""
    found: dict[str, Factors] = {}
    for module in modules:
        gate = None
        if f"{module}:w1" in tensors:
            w1, b1, w2, b2 = (tensors[f"{module}:{part}"] for part in _GATE_PARTS)
            gate = (w1, b1, w2, b2)
        found[module] = Factors(a=tensors[f"{module}:a"], b=tensors[f"{module}:b"], gate=gate)
    return found


def _gate(gate: tuple[Tensor, Tensor, Tensor, Tensor]) -> Gate:
    w1, b1, w2, b2 = (tensor.to(torch.bfloat16) for tensor in gate)
    return Gate(w1=w1, b1=b1, w2=w2, b2=b2)


def _bytes(stored: StoredCompensator) -> int:
    gate = stored.gate
    parts = [stored.a.values, stored.b.values, *_scales(stored.a), *_scales(stored.b)]
    if gate is not None:
        parts += [gate.w1, gate.b1, gate.w2, gate.b2]
    return sum(tensor.nbytes for tensor in parts)


def _scales(factor: EncodedFactor) -> list[Tensor]:
    return [] if factor.scales is None else [factor.scales]
