"""The smallest kernel with a loop whose bounds are not constants."""

import triton
import triton.language as tl


@triton.jit
def count(out, n):
    total = 0.0
    for _ in range(tl.minimum(n, 3), n):
        total += 1.0
    tl.store(out, total)
