"""The law of compensators, in float32.

``z = A x``, ``gate = 2 sigmoid(W2 silu(W1 clamp(z, -8, 8) + b1) + b2)``, correction ``B (gate * z)``.
The gate lies in (0, 2): it never flips a correction and at most doubles it.
"""

import torch
from torch import Tensor

GateWeights = tuple[Tensor, Tensor, Tensor, Tensor]
"""``w1 (h, R)``, ``b1 (h,)``, ``w2 (R, h)``, ``b2 (R,)``."""

# Outlier tokens would saturate the gate's first layer; the product below keeps the raw code.
GATE_INPUT_LIMIT = 8.0


def compensate(x: Tensor, a: Tensor, b: Tensor, gate: GateWeights | None = None) -> Tensor:
    """What a compensator adds to its layer's output.

    Args:
        x: Any float ``(M, K)``, the layer's input.
        a: ``(R, K)``.
        b: ``(N, R)``.
        gate: ``None`` = static, the gate is 1.

    Returns:
        float32 ``(M, N)``.
    """
    code = x.float() @ a.float().T  # (M, R)
    if gate is not None:
        code = code * gate_of(code, gate)
    return code @ b.float().T


def gate_of(code: Tensor, gate: GateWeights) -> Tensor:
    """The gate of each code; differentiable.

    Args:
        code: Any float ``(..., R)``.
        gate: Its weights.

    Returns:
        float32 ``(..., R)``, in (0, 2).
    """
    w1, b1, w2, b2 = (tensor.float() for tensor in gate)
    limited = code.float().clamp(-GATE_INPUT_LIMIT, GATE_INPUT_LIMIT)
    hidden = torch.nn.functional.silu(limited @ w1.T + b1)
    return 2 * torch.sigmoid(hidden @ w2.T + b2)
