"""What launchers ask of tensors: kernels read memory by address, so a wrong shape must never reach them."""

from collections.abc import Sequence

import torch
from torch import Tensor

FLOATS = (torch.float16, torch.bfloat16, torch.float32)


def require(
    name: str,
    tensor: Tensor,
    *,
    shape: Sequence[int | None],
    dtypes: Sequence[torch.dtype],
    device: torch.device,
    rows_contiguous: bool = False,
) -> None:
    """Refuses a tensor that a kernel would misread.

    Args:
        name: For the message.
        tensor: What was given.
        shape: Expected sizes; ``None`` = any.
        dtypes: Types allowed.
        device: Where it must live.
        rows_contiguous: Only the last dimension must be contiguous; otherwise the whole tensor.

    Raises:
        ValueError: With the name, the value, what is expected, and what to do.
    """
    sizes = tuple(tensor.shape)
    if len(sizes) != len(shape) or any(
        want is not None and have != want for have, want in zip(sizes, shape, strict=True)
    ):
        wanted = ", ".join("any" if want is None else str(want) for want in shape)
        raise ValueError(f"{name} has shape {sizes}; it must be ({wanted})")
    if tensor.dtype not in dtypes:
        raise ValueError(f"{name} is {tensor.dtype}; it must be {' or '.join(map(str, dtypes))}")
    if tensor.device != device:
        raise ValueError(f"{name} is on {tensor.device}; move it to {device}")
    if rows_contiguous:
        if tensor.numel() and tensor.stride(-1) != 1:
            raise ValueError(
                f"{name} has strides {tensor.stride()}; the last must be 1: call contiguous() first"
            )
    elif not tensor.is_contiguous():
        raise ValueError(f"{name} has strides {tensor.stride()}; call contiguous() first")


def power_of_two(count: int) -> int:
    """The smallest power of two that is at least ``count`` and at least 1."""
    return 1 << max(count - 1, 0).bit_length()
