"""GGUF's blocks of 32 weights as codes and scales."""

import numpy as np
import numpy.typing as npt
import torch
from gguf import GGMLQuantizationType
from torch import Tensor

from spearhead.errors import CheckpointError
from spearhead.model.quantization import QuantizedWeight

GROUP_SIZE = 32
_BLOCK_BYTES = {
    GGMLQuantizationType.Q4_0: 18,  # scale, 16 bytes of codes
    GGMLQuantizationType.Q4_1: 20,  # scale, minimum, 16 bytes of codes
    GGMLQuantizationType.Q8_0: 34,  # scale, 32 bytes of codes
}
_OFFSET = 8


def is_decoded(kind: GGMLQuantizationType) -> bool:
    """Whether :func:`decode_blocks` knows a type."""
    return kind in _BLOCK_BYTES


def check_blocks(data: npt.NDArray[np.uint8], kind: GGMLQuantizationType, *, where: str) -> None:
    """Reads the scales of a matrix and nothing else; arguments and errors are :func:`decode_blocks`'."""
    blocks = data.reshape(data.shape[0], -1, _BLOCK_BYTES[kind])
    for at in (0, 2) if kind == GGMLQuantizationType.Q4_1 else (0,):
        _half(blocks, at, where)


def decode_blocks(data: npt.NDArray[np.uint8], kind: GGMLQuantizationType, *, where: str) -> QuantizedWeight:
    """The codes and scales of a matrix. Scales are float16 and may be negative.

    Q4_0 is ``scale * (code - 8)``, Q4_1 ``scale * code + minimum``, Q8_0 ``scale * code`` with signed codes.

    Args:
        data: uint8 ``(N, bytes a row)``.
        kind: Q4_0, Q4_1 or Q8_0.
        where: The tensor, for messages.

    Raises:
        CheckpointError: A scale or a minimum is NaN or infinite.
    """
    rows = data.shape[0]
    blocks = data.reshape(rows, -1, _BLOCK_BYTES[kind])
    scales = _half(blocks, 0, where)
    if kind == GGMLQuantizationType.Q8_0:
        return QuantizedWeight(bits=8, codes=_codes(blocks[:, :, 2:]), scales=scales)
    packed = blocks[:, :, -GROUP_SIZE // 2 :]
    # The low halves of the bytes are the first 16 weights.
    codes = _codes(np.concatenate([packed & 0xF, packed >> 4], axis=2)) - _OFFSET
    if kind == GGMLQuantizationType.Q4_0:
        return QuantizedWeight(bits=4, codes=codes, scales=scales)
    zeros = torch.full_like(scales, -_OFFSET, dtype=torch.int16)
    return QuantizedWeight(bits=4, codes=codes, scales=scales, zeros=zeros, minimums=_half(blocks, 2, where))


def _codes(blocks: npt.NDArray[np.uint8]) -> Tensor:
    """int8 ``(N, K)``, a copy: the file is mapped, and cannot be written to."""
    return torch.from_numpy(np.array(blocks).reshape(blocks.shape[0], -1).view(np.int8))


def _half(blocks: npt.NDArray[np.uint8], at: int, where: str) -> Tensor:
    """A float16 of each block, ``(N, G)``, a copy."""
    values = np.array(blocks[:, :, at : at + 2], order="C").view(np.float16)[:, :, 0]
    if not np.isfinite(values).all():
        raise CheckpointError(
            f"tensor {where} has a block whose scale is NaN or infinite; download the file again"
        )
    return torch.from_numpy(values)
