"""Many small arrays to a device in one copy."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_ALIGNMENT = 16  # bytes; kernels may read four numbers at once

_DTYPES: dict[type[np.generic], torch.dtype] = {
    np.int32: torch.int32,
    np.int64: torch.int64,
    np.float32: torch.float32,
    np.float64: torch.float64,
}


def upload(arrays: Sequence[npt.NDArray[np.generic]], device: torch.device) -> list[Tensor]:
    """Copies arrays to a device: one transfer, whatever their number.

    Args:
        arrays: int32, int64, float32 or float64, of any shape.
        device: Where they go.

    Returns:
        Contiguous tensors of the same types and shapes; they share one storage.
    """
    sent = torch.from_numpy(pack(arrays)).to(device)
    return views(sent, arrays)


def pack(arrays: Sequence[npt.NDArray[np.generic]]) -> npt.NDArray[np.uint8]:
    """Arrays behind each other, each at an aligned place."""
    starts = _starts(arrays)
    packed = np.zeros(max(starts[-1], _ALIGNMENT), np.uint8)  # torch views no memory of size zero
    for start, array in zip(starts[:-1], arrays, strict=True):
        packed[start : start + array.nbytes] = np.ascontiguousarray(array).view(np.uint8).reshape(-1)
    return packed


def views(memory: Tensor, arrays: Sequence[npt.NDArray[np.generic]]) -> list[Tensor]:
    """What :func:`pack` put into memory, as tensors that share it.

    Args:
        memory: uint8, packed arrays.
        arrays: Of the types and shapes that were packed.
    """
    return [
        memory[start : start + array.nbytes].view(_DTYPES[array.dtype.type]).view(array.shape)
        for start, array in zip(_starts(arrays)[:-1], arrays, strict=True)
    ]


def _starts(arrays: Sequence[npt.NDArray[np.generic]]) -> list[int]:
    starts = [0]
    for array in arrays:
        starts.append(starts[-1] + array.nbytes + -array.nbytes % _ALIGNMENT)
    return starts
