"""Many rows: dequantise once into scratch memory, then one product of the dense library. Needs Triton.

Wins where arithmetic, not reading weights, is what a product costs. A correction becomes S R more columns:
``[x; zg] [W B]ᵀ`` costs a hundredth more arithmetic and no second pass over ``y``. A row's bits may depend on
M.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.compensator.layout import GpuCompensator, write_dense_b
from kernels.w4a16.gpu import check, check_correction, compiled
from kernels.w4a16.kernel import dequantize_kernel
from kernels.w4a16.layout import TILE_OUTPUTS, GpuWeight
from kernels.w4a16.workspace import Workspace


def multiply(
    x: Tensor,
    weight: GpuWeight,
    workspace: Workspace,
    *,
    compensator: GpuCompensator | None = None,
    codes: Tensor | None = None,
) -> Tensor:
    """``x weightᵀ + bias + codes Bᵀ`` in the type of ``x``, as :func:`kernels.w4a16.gpu.multiply`."""
    check(x, weight)
    check_correction(x, weight, compensator, codes)
    extra = 0 if compensator is None else compensator.code_width
    dense = workspace.dense(weight.out_features, weight.in_features + extra, x.dtype)
    dequantize(weight, dense)
    if compensator is not None and codes is not None:
        write_dense_b(compensator, dense[:, weight.in_features :])
        x = extend(x, codes)
    bias = None if weight.bias is None else weight.bias[: weight.out_features].to(x.dtype)
    return F.linear(x, dense, bias)


def extend(x: Tensor, codes: Tensor) -> Tensor:
    """``[x; zg]`` in the type of ``x``, ``(M, K + S R)``, of ``codes (P, M, S R)``, limited to its range."""
    limit = torch.finfo(x.dtype).max
    return torch.cat((x, codes.sum(dim=0).clamp(-limit, limit).to(x.dtype)), dim=1)


def dequantize(weight: GpuWeight, out: Tensor) -> None:
    """Writes a weight's values, each rounded once, into the first K columns.

    Args:
        weight: ``(N, K)``.
        out: float16 or bfloat16 ``(N, K or more)``, with columns next to each other.
    """
    grid = (weight.words.shape[1], weight.words.shape[0])
    dequantize_kernel[grid](
        weight.words,
        weight.scales,
        out,
        weight.out_features,
        weight.padded_outputs,
        weight.in_features,
        out.stride(0),
        BN=TILE_OUTPUTS,
        G=weight.group_size,
        ASM=compiled(),
        num_warps=4,
    )
