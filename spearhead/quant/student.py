"""The compensated model while it is trained: frozen 4-bit weights, trainable factors and gates."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernels.compensator import gate_of
from spearhead.model.checkpoint.factor_codec import FactorBits
from spearhead.quant.decoder import Linear, plain_linear
from spearhead.quant.factor_precision import round_factor

# Tensor cores want ranks that are multiples of this; the components that fill up are zero and stay zero.
_ALIGNMENT = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Factors:
    """One compensator's factors and gate, float32.

    Attributes:
        a: ``(R, K)``.
        b: ``(N, R)``.
        gate: ``w1 (h, R)``, ``b1 (h,)``, ``w2 (R, h)``, ``b2 (R,)``, or ``None`` = static.
    """

    a: Tensor
    b: Tensor
    gate: tuple[Tensor, Tensor, Tensor, Tensor] | None = None


def gate_width(rank: int) -> int:
    """Hidden units of a gate: about a quarter of the rank, at least 4 and a multiple of 4."""
    return max(4, 4 * math.ceil(rank / 16))


def identity_gate(rank: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A gate that is exactly 1 and ready to learn: the second layer is zero, the first random."""
    width = gate_width(rank)
    w1 = torch.randn(width, rank, generator=torch.Generator().manual_seed(seed)) / math.sqrt(rank)
    return w1, torch.zeros(width), torch.zeros(rank, width), torch.zeros(rank)


class Student(nn.Module):
    """Compensators of many modules, trained together.

    Factors of equal width lie in one matrix, so that rounding and the optimiser take a few operations instead
    of a few for each of hundreds of modules. A parameter is a factor's row over the root mean square it
    started with: a step of the optimiser is then a share of the component, whether its module lost much or
    little.

    Args:
        start: Full module name to where its training starts; all on one device afterwards.
        bits: How factors will be stored.
        device: Where they are trained.
    """

    def __init__(self, start: Mapping[str, Factors], bits: FactorBits, device: torch.device) -> None:
        super().__init__()
        self.bits: FactorBits = bits
        self.ranks = {module: len(factors.a) for module, factors in start.items()}
        self._places: dict[int, list[tuple[str, str, int]]] = {}
        rows: dict[int, list[Tensor]] = {}
        for module, factors in start.items():
            for part, matrix in (("a", factors.a), ("b", factors.b.T)):
                rank, width = matrix.shape
                padded = -(-rank // _ALIGNMENT) * _ALIGNMENT
                self._places.setdefault(width, []).append((module, part, padded))
                filled = F.pad(matrix.float().to(device), (0, 0, 0, padded - rank))
                rows.setdefault(width, []).append(filled)
        self.factors = nn.ParameterDict()
        self._units: dict[str, Tensor] = {}
        for width, parts in rows.items():
            bank = torch.cat(parts)
            size = bank.square().mean(1, keepdim=True).sqrt()
            units = torch.where(size > 0, size, torch.ones_like(size))
            self._units[str(width)] = units
            self.factors[str(width)] = nn.Parameter(bank / units)
        self.gates = nn.ParameterDict()
        self._gated = {module for module, factors in start.items() if factors.gate is not None}
        for module, factors in start.items():
            for part, tensor in zip(("w1", "b1", "w2", "b2"), factors.gate or (), strict=False):
                self.gates[_key(module, part)] = nn.Parameter(tensor.detach().float().to(device).clone())

    def linear(self, dtype: torch.dtype, inner: Linear = plain_linear) -> Linear:
        """The projections with corrections, as the parameters are now; make a new one for each forward pass.

        Args:
            dtype: Of the activations.
            inner: Computes the projections without corrections.
        """
        used = self._rounded(dtype)

        def compensated(module: str, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
            y = inner(module, x, weight, bias)
            pair = used.get(module)
            if pair is None:
                return y
            code = F.linear(x, pair["a"])
            if module in self._gated:
                rank = self.ranks[module]
                scaled = code[..., :rank] * self._gate(module, code[..., :rank]).to(code.dtype)
                return y + scaled @ pair["b"][:rank]
            return y + code @ pair["b"]

        return compensated

    def factor_parameters(self) -> Sequence[nn.Parameter]:
        """A and B of every module, each component in units of its size at the start."""
        return list(self.factors.values())

    def gate_parameters(self) -> Sequence[nn.Parameter]:
        """Everything inside gates; empty without gates."""
        return list(self.gates.values())

    def trained(self) -> dict[str, Factors]:
        """The factors as training left them, not rounded, on the CPU; a start for further training."""
        with torch.no_grad():
            split = self._split({width: bank * self._units[width] for width, bank in self.factors.items()})
            return {module: self._factors(module, pair) for module, pair in split.items()}

    def _factors(self, module: str, pair: Mapping[str, Tensor]) -> Factors:
        rank = self.ranks[module]
        gate = None
        if module in self._gated:
            w1, b1, w2, b2 = (self.gates[_key(module, part)] for part in ("w1", "b1", "w2", "b2"))
            gate = (w1.detach().cpu(), b1.detach().cpu(), w2.detach().cpu(), b2.detach().cpu())
        return Factors(a=pair["a"][:rank].cpu(), b=pair["b"][:rank].T.cpu().contiguous(), gate=gate)

    def _rounded(self, dtype: torch.dtype) -> dict[str, dict[str, Tensor]]:
        return self._split(
            {
                width: round_factor(bank * self._units[width], self.bits).to(dtype)
                for width, bank in self.factors.items()
            }
        )

    def _split(self, banks: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
        found: dict[str, dict[str, Tensor]] = {}
        for width, bank in banks.items():
            places = self._places[int(width)]
            # One split has one backward operation; a slice each would have hundreds.
            for (module, part, _), rows in zip(
                places, torch.split(bank, [count for _, _, count in places]), strict=True
            ):
                found.setdefault(module, {})[part] = rows
        return found

    def _gate(self, module: str, code: Tensor) -> Tensor:
        w1, b1, w2, b2 = (self.gates[_key(module, part)] for part in ("w1", "b1", "w2", "b2"))
        return gate_of(code, (w1, b1, w2, b2))


def _key(module: str, part: str) -> str:
    # Parameter names may not hold dots.
    return f"{module}/{part}".replace(".", ":")
