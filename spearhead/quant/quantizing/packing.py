"""The tensors that compressed-tensors' ``pack-quantized`` stores for a module."""

import torch
from torch import Tensor

from kernels.w4a16 import pack
from spearhead.quant.methods.weight import QuantizedResult
from spearhead.quant.recipe import ModuleChoice

_PER_WORD = {4: 8, 8: 4}
_SHAPE_BYTES = 16


def packed_tensors(module: str, result: QuantizedResult, bits: int) -> dict[str, Tensor]:
    """Codes in words, scales and shape, by their full names, on the CPU."""
    codes = result.codes.cpu()
    return {
        f"{module}.weight_packed": pack(codes) if bits == 4 else _pack_bytes(codes),
        f"{module}.weight_scale": result.scales.cpu(),
        f"{module}.weight_shape": torch.tensor(codes.shape),
    }


def packed_bytes(shape: tuple[int, int], choice: ModuleChoice, scale_bytes: int) -> int:
    """Size of :func:`packed_tensors` for a weight of this shape."""
    rows, columns = shape
    groups = columns // (choice.scheme.group_size or columns)
    return 4 * rows * -(-columns // _PER_WORD[choice.bits]) + rows * groups * scale_bytes + _SHAPE_BYTES


def _pack_bytes(codes: Tensor) -> Tensor:
    """Four 8-bit codes a word, lowest byte first, stored as code + 128."""
    padding = -codes.shape[1] % _PER_WORD[8]
    unsigned = (codes.to(torch.int16) + 128).to(torch.uint8)
    return torch.nn.functional.pad(unsigned, (0, padding)).contiguous().view(torch.int32)
