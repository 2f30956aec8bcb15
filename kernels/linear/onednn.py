"""Linear layers over weights that oneDNN has laid out once, instead of in every call.

Reading the weights is what a step costs, and with plain weights the library rearranges them in each call;
``python -m kernels.linear.bench`` shows the difference. The operators are those that ``torch.compile`` emits
for frozen weights.

A packed weight is an opaque tensor that keeps shape and dtype; only :func:`linear` can use it.
"""

import functools

import torch
import torch.nn.functional as F
from torch import Tensor

_PACKED_DTYPES = (torch.float32, torch.bfloat16)


@functools.cache
def packs(dtype: torch.dtype) -> bool:
    """Whether weights of this type can be packed here; tried once on a small matrix."""
    if dtype not in _PACKED_DTYPES or not torch._C._has_mkldnn:
        return False
    generator = torch.Generator().manual_seed(0)
    weight, x = (torch.randn(32, 64, generator=generator).to(dtype) for _ in range(2))
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, None)
        return torch.allclose(linear(x, packed).float(), F.linear(x, weight).float(), rtol=0.02, atol=0.02)
    except (AttributeError, RuntimeError):  # a torch without the operators, or a build without oneDNN
        return False


def pack(weight: Tensor) -> Tensor:
    """Lays a weight out for :func:`linear`.

    Args:
        weight: ``(N, K)`` on the CPU, of a type for which :func:`packs` holds.

    Returns:
        An opaque ``(N, K)`` tensor of the same dtype and size.
    """
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), None)
    return packed


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x weightᵀ + bias`` in the dtype of ``x``.

    Args:
        x: ``(M, K)``, contiguous.
        weight: ``(N, K)``, packed or plain, of the same dtype.
        bias: ``(N,)`` or ``None``.

    Returns:
        ``(M, N)``.
    """
    if weight.is_mkldnn:
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return y
    return F.linear(x, weight, bias)
