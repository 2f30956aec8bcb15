"""Packed linear layers against the law, and the invariance that makes them usable."""

import pytest
import torch

from kernels.linear import linear, pack, packs
from kernels.linear.reference import linear as reference

BOUNDS = {torch.float32: 1e-5, torch.bfloat16: 1e-2}  # sums of K products; one rounding of the result


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize(("n", "k"), [(1, 1), (3, 17), (63, 100), (64, 96), (320, 64)])
@pytest.mark.parametrize("rows", [1, 3, 17, 63, 100])
@pytest.mark.parametrize("biased", [False, True])
def test_packed_and_plain_weights_follow_the_law(dtype, n, k, rows, biased):
    assert packs(dtype)
    generator = torch.Generator().manual_seed(n + k + rows)
    x, weight = (torch.randn(count, k, generator=generator).to(dtype) for count in (rows, n))
    bias = (100 * torch.randn(n, generator=generator)).to(dtype) if biased else None
    expected = reference(x, weight, bias)
    for used in (weight, pack(weight)):
        result = linear(x, used, bias).float()
        assert (result - expected).norm() <= BOUNDS[dtype] * expected.norm()


def test_packing_keeps_shape_and_type():
    packed = pack(torch.randn(48, 32, dtype=torch.bfloat16))
    assert (tuple(packed.shape), packed.dtype, packed.is_mkldnn) == ((48, 32), torch.bfloat16, True)


def test_types_without_a_packed_kernel_are_named():
    assert not packs(torch.float16)
