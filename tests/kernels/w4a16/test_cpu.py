"""Weights held in 4 bits against the law, and the invariance that makes them usable."""

import pytest
import torch

from kernels.w4a16 import dequantize, fitting_group_size, multiply, pack_codes, packs

# One rounding of the result, and of each scale; float32 only sums in another order.
BOUNDS = {torch.bfloat16: 1e-2, torch.float16: 1e-3, torch.float32: 1e-5}


def weight(n, k, groups):
    generator = torch.Generator().manual_seed(n + k)
    codes = torch.randint(-8, 8, (n, k), dtype=torch.int8, generator=generator)
    return codes, torch.rand(n, groups, generator=generator).to(torch.float16) / 50


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize(
    ("n", "k", "groups"), [(16, 32, 1), (48, 192, 2), (112, 576, 18), (64, 576, 1), (320, 256, 1)]
)
@pytest.mark.parametrize("rows", [1, 3, 17, 63])
def test_results_follow_the_law(dtype, n, k, groups, rows):
    assert packs(dtype)
    codes, scales = weight(n, k, groups)
    x = torch.randn(rows, k, generator=torch.Generator().manual_seed(0)).to(dtype)
    expected = x.float() @ dequantize(codes, scales).T
    result = multiply(x, pack_codes(codes, scales, dtype)).float()
    assert (result - expected).norm() <= BOUNDS[dtype] * expected.norm()


@pytest.mark.parametrize("dtype", BOUNDS)
def test_a_row_has_the_same_bits_in_any_batch(dtype):
    packed = pack_codes(*weight(96, 576, 18), dtype)
    x = torch.randn(64, 576, generator=torch.Generator().manual_seed(0)).to(dtype)
    whole = multiply(x, packed)
    for rows in (1, 2, 3, 4, 5, 8, 17):
        parts = torch.cat([multiply(part.clone(), packed) for part in torch.split(x, rows)])
        assert torch.equal(parts, whole)


def test_a_packed_weight_takes_half_a_byte_a_code_and_two_numbers_a_group():
    packed = pack_codes(*weight(64, 256, 8), torch.bfloat16)
    assert (tuple(packed.shape), packed.dtype, packed.group_size) == ((64, 256), torch.bfloat16, 32)
    assert packed.codes.nbytes == 64 * 256 // 2
    assert packed.scales_and_zeros.nbytes == 64 * 8 * 2 * 2


@pytest.mark.parametrize(
    ("n", "k", "groups", "size"),
    [
        (16, 512, 1, 256),
        (16, 576, 1, 64),
        (16, 128, 1, 128),
        (16, 96, 3, 32),
        (17, 64, 1, None),
        (16, 48, 1, None),
        (16, 64, 3, None),
    ],
)
def test_the_largest_group_size_that_fits_is_used(n, k, groups, size):
    assert fitting_group_size(n, k, groups) == size


def test_a_weight_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="17 x 64 weight with 1 scales a row cannot be packed"):
        pack_codes(*weight(17, 64, 1), torch.bfloat16)
