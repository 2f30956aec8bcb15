"""Packing for the GPU kernels."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.w4a16 import kernel_group_size, pack_gpu, unpack_gpu, with_bias


def random_codes(outputs: int, inputs: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-8, 8, (outputs, inputs), generator=generator, dtype=torch.int8)


@settings(max_examples=30, deadline=None)
@given(outputs=st.integers(1, 200), inputs=st.integers(1, 300), seed=st.integers(0, 1000))
def test_unpacking_gives_back_what_was_packed(outputs: int, inputs: int, seed: int) -> None:
    codes = random_codes(outputs, inputs, seed)
    assert torch.equal(unpack_gpu(pack_gpu(codes, torch.ones(outputs, 1))), codes)


def test_a_code_lies_where_the_layout_says() -> None:
    outputs, inputs = 128, 256
    codes = random_codes(outputs, inputs)
    words = pack_gpu(codes, torch.ones(outputs, 1)).words
    for output, k in [(0, 0), (1, 1), (7, 2), (8, 8), (17, 16), (63, 31), (64, 32), (100, 130), (127, 255)]:
        warp, half, lane = output % 64 // 16, output % 16 // 8, output % 8
        u, h, i, c, j = k % 128 // 32, k % 32 // 16, k % 16 // 8, k % 8 // 2, k % 2
        word = words[output // 64, k // 128, half * 32 + warp * 8 + lane, c * 4 + u]
        assert (int(word) >> (8 * h + 4 * i + 16 * j) & 15) - 8 == int(codes[output, k])


def test_padding_multiplies_to_nothing() -> None:
    weight = pack_gpu(random_codes(65, 130), torch.ones(65, 1), torch.ones(65))
    assert (tuple(weight.shape), weight.padded_outputs) == ((65, 130), 128)
    assert tuple(weight.words.shape) == (2, 2, 64, 16)
    assert int(weight.scales[:, 65:].count_nonzero()) == 0
    assert weight.bias is not None and int(weight.bias[65:].count_nonzero()) == 0


def test_a_weight_takes_half_a_byte_a_code() -> None:
    weight = pack_gpu(random_codes(128, 256), torch.ones(128, 2).half())
    assert weight.nbytes == 128 * 256 // 2 + 128 * 2 * 2


@pytest.mark.parametrize(
    ("inputs", "groups", "size"),
    [(576, 1, 0), (512, 4, 128), (512, 2, 256), (576, 9, 64), (576, 18, 32), (576, 3, 64), (192, 2, 32)],
)
def test_groups_become_the_largest_that_the_kernel_knows(inputs: int, groups: int, size: int) -> None:
    assert kernel_group_size(inputs, groups) == size


def test_scales_are_repeated_for_smaller_groups_and_end_in_zeros() -> None:
    scales = torch.rand(64, 3)
    weight = pack_gpu(random_codes(64, 576), scales)
    assert tuple(weight.scales.shape) == (10, 64)
    assert torch.equal(weight.scales[:9].T, scales.repeat_interleave(3, dim=1))
    assert int(weight.scales[9].count_nonzero()) == 0


@pytest.mark.parametrize(
    ("codes", "scales", "message"),
    [
        (torch.zeros(2, 8, dtype=torch.int32), torch.ones(2, 1), "int8"),
        (torch.zeros(2, 8, dtype=torch.int8), torch.ones(3, 1), r"\(3, 1\)"),
        (torch.zeros(2, 8, dtype=torch.int8), torch.ones(2, 3), "3 groups do not divide K = 8"),
        (torch.zeros(2, 96, dtype=torch.int8), torch.ones(2, 2), "groups of 48"),
    ],
)
def test_weights_that_do_not_fit_are_refused(codes: torch.Tensor, scales: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pack_gpu(codes, scales)


def test_a_bias_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match=r"bias must be \(2,\)"):
        pack_gpu(torch.zeros(2, 8, dtype=torch.int8), torch.ones(2, 1), torch.ones(3))


def test_a_bias_that_comes_later_is_the_one_that_would_have_been_packed() -> None:
    codes, scales, bias = random_codes(65, 130), torch.ones(65, 1), torch.arange(65.0)
    later = with_bias(pack_gpu(codes, scales), bias)
    assert later.bias is not None and torch.equal(later.bias, F.pad(bias, (0, 63)))
    with pytest.raises(ValueError, match=r"bias must be \(65,\)"):
        with_bias(later, bias[:64])
