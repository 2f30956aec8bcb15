# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,no-any-return"
# Triton's language has no types that a checker knows.
"""Adds partial codes in one launch. Needs Triton.

With few rows the product adds them itself; with many, each of its programs would read the parts of all rows.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.overlap import early_start
from kernels.tensor_checks import require

_BLOCK = 256


@triton.jit(do_not_specialize=["count"])  # one compilation for every row count
def total_kernel(
    codes, total, count, P: tl.constexpr, BLOCK: tl.constexpr, ASM: tl.constexpr, OVERLAP: tl.constexpr
):
    """``total (count,) = codes (P, count)`` added in rising order, as the product does."""
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    own = tl.load(codes + places, mask=places < count, other=0.0)
    for part in tl.static_range(1, P):
        own += tl.load(codes + part * count.to(tl.int64) + places, mask=places < count, other=0.0)
    tl.store(total + places, own, mask=places < count)


def launch(codes: Tensor) -> Tensor:
    """The law of :func:`kernels.producer.reference.total_codes` on the device of ``codes``.

    Args:
        codes: float32 ``(P, M, S R)``, contiguous, P >= 1.

    Returns:
        float32 ``(M, S R)``.

    Raises:
        ValueError: Another shape or type.
    """
    require("codes", codes, shape=(None, None, None), dtypes=(torch.float32,), device=codes.device)
    total = torch.empty(codes.shape[1:], dtype=torch.float32, device=codes.device)
    if total.numel():
        total_kernel[(triton.cdiv(total.numel(), _BLOCK),)](
            codes,
            total,
            total.numel(),
            P=codes.shape[0],
            BLOCK=_BLOCK,
            num_warps=4,
            **early_start(total_kernel, codes.device),
        )
    return total
