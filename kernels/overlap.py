"""Whether a kernel may start under the one in front of it (programmatic dependent launch).

A kernel that does reads constants first, then waits for all of the kernel in front, and only then reads what
others write and writes itself. One that produces lets its successor start at once, so that the successor's
constants are on their way meanwhile; it takes few multiprocessors, so that the successor finds its place.

A kernel ends only after its own wait, so that a wait returns when everything that was launched before on the
stream has ended, however many kernels run at once. Memory that is freed and given out again is therefore as
safe as without: nothing is written before the wait. Constants are read before it: they must have been written
before the kernel in front was launched, by one that lets no successor start.
"""

from functools import lru_cache

import torch
import triton

_HOPPER = 9


def early_start(kernel: object, device: torch.device) -> dict[str, bool]:
    """Launch arguments of a kernel with constants ``OVERLAP`` and ``ASM``.

    Args:
        kernel: As decorated; in Triton's interpreter it is something else, and never starts early.
        device: Of the launch.
    """
    if not compiled(kernel):
        return {"OVERLAP": False, "ASM": False}
    early = _starts_early(device.index)
    return {"OVERLAP": early, "launch_pdl": early, "ASM": True}


def compiled(kernel: object) -> bool:
    """Whether a kernel is compiled; the interpreter has no bfloat16 arithmetic and no assembly."""
    return isinstance(kernel, triton.JITFunction)


@lru_cache
def _starts_early(index: int | None) -> bool:
    return bool(torch.cuda.get_device_capability(index)[0] >= _HOPPER)
