"""The compensated model while it is trained: frozen 4-bit weights, trainable factors and gates."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernels.compensator import GATE_INPUT_LIMIT
from spearhead.quant.decoder import plain_linear
from spearhead.quant.factor_precision import FactorBits, round_factor
from spearhead.quant.low_rank import LowRank


@dataclass(frozen=True, slots=True, kw_only=True)
class GateShape:
    """The gate's bottleneck.

    Attributes:
        width: h, hidden units.
        seed: Of the first layer's random weights; the second starts at zero.
    """

    width: int
    seed: int = 0

    @classmethod
    def for_rank(cls, rank: int, seed: int = 0) -> "GateShape":
        """About a quarter of the rank, at least 4 and a multiple of 4."""
        return cls(width=max(4, 4 * math.ceil(rank / 16)), seed=seed)


class TrainableGate(nn.Module):
    """2 sigmoid(w2 silu(w1 z + b1) + b2); exactly 1 at the start.

    Args:
        rank: R.
        shape: The bottleneck.
        device: Where it lives.
    """

    def __init__(self, rank: int, shape: GateShape, device: torch.device) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(shape.seed)
        w1 = torch.randn(shape.width, rank, generator=generator) / math.sqrt(rank)
        self.w1 = nn.Parameter(w1.to(device))
        self.b1 = nn.Parameter(torch.zeros(shape.width, device=device))
        self.w2 = nn.Parameter(torch.zeros(rank, shape.width, device=device))
        self.b2 = nn.Parameter(torch.zeros(rank, device=device))

    def forward(self, code: Tensor) -> Tensor:
        """Gates of codes ``(..., R)``, float32, each in (0, 2)."""
        limited = code.float().clamp(-GATE_INPUT_LIMIT, GATE_INPUT_LIMIT)
        hidden = F.silu(F.linear(limited, self.w1, self.b1))
        return 2 * torch.sigmoid(F.linear(hidden, self.w2, self.b2))


class TrainableCompensator(nn.Module):
    """y += B (gate(A x) * A x), with A and B seen as they will be stored.

    Args:
        start: Where training starts.
        bits: How factors are stored.
        gate: ``None`` = static.
        device: Where it lives.
    """

    def __init__(
        self, start: LowRank, bits: FactorBits, gate: GateShape | None, device: torch.device
    ) -> None:
        super().__init__()
        self.bits: FactorBits = bits
        self.a = nn.Parameter(start.a.to(device, torch.float32).clone())  # (R, K)
        self.bt = nn.Parameter(
            start.b.T.to(device, torch.float32).clone(memory_format=torch.contiguous_format)
        )
        self.gate = None if gate is None else TrainableGate(len(self.a), gate, device)

    def forward(self, x: Tensor) -> Tensor:
        """The correction, ``(..., N)`` in the dtype of ``x`` ``(..., K)``."""
        code = F.linear(x, round_factor(self.a, self.bits).to(x.dtype))
        if self.gate is not None:
            code = code * self.gate(code).to(x.dtype)
        return code @ round_factor(self.bt, self.bits).to(x.dtype)

    def stored(self) -> tuple[Tensor, Tensor]:
        """A ``(R, K)`` and B ``(N, R)`` as they are used, float32."""
        with torch.no_grad():
            return round_factor(self.a, self.bits), round_factor(self.bt, self.bits).T.contiguous()


class CompensatedLinear:
    """A :data:`~spearhead.quant.decoder.Linear` that adds compensators.

    Args:
        compensators: Full module name to its compensator; modules without one are left alone.
    """

    def __init__(self, compensators: Mapping[str, TrainableCompensator]) -> None:
        self.compensators = compensators

    def __call__(self, module: str, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The projection plus its correction."""
        y = plain_linear(module, x, weight, bias)
        compensator = self.compensators.get(module)
        return y if compensator is None else y + compensator(x)

    def factor_parameters(self) -> Iterator[nn.Parameter]:
        """A and B of every module."""
        for compensator in self.compensators.values():
            yield compensator.a
            yield compensator.bt

    def gate_parameters(self) -> Iterator[nn.Parameter]:
        """Everything inside gates."""
        for compensator in self.compensators.values():
            if compensator.gate is not None:
                yield from compensator.gate.parameters()
