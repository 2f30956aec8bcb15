import pytest
import torch
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32, unpack_from_int32
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.w4a16 import dequantize, linear, pack, unpack


def random_codes(rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-8, 8, (rows, columns), generator=generator, dtype=torch.int8)


@settings(max_examples=50, deadline=None)
@given(rows=st.integers(1, 5), columns=st.integers(1, 100), seed=st.integers(0, 1000))
def test_unpacking_gives_back_what_was_packed(rows: int, columns: int, seed: int) -> None:
    codes = random_codes(rows, columns, seed)
    assert torch.equal(unpack(pack(codes), columns), codes)


@pytest.mark.parametrize("columns", [1, 3, 8, 17, 63, 64, 100])
def test_packing_equals_compressed_tensors(columns: int) -> None:
    codes = random_codes(3, columns)
    # A last word that is partly empty: they pad it with zero bits as well.
    assert torch.equal(pack(codes), pack_to_int32(codes, 4))
    assert torch.equal(unpack(pack(codes), columns), unpack_from_int32(pack(codes), 4, codes.shape))


def test_every_code_survives_at_every_place_of_a_word() -> None:
    codes = torch.tensor([[(code + place) % 16 - 8 for place in range(8)] for code in range(16)])
    assert torch.equal(unpack(pack(codes.to(torch.int8)), 8), codes.to(torch.int8))


def test_packing_refuses_codes_of_another_type() -> None:
    with pytest.raises(ValueError, match="int8"):
        pack(torch.zeros(2, 8, dtype=torch.int32))


def test_unpacking_refuses_a_width_that_does_not_fit() -> None:
    with pytest.raises(ValueError, match=r"\(N, 3\)"):
        unpack(torch.zeros(2, 2, dtype=torch.int32), 17)


@pytest.mark.parametrize("group_count", [1, 3])
def test_each_weight_is_its_code_times_the_scale_of_its_group(group_count: int) -> None:
    codes, scales = random_codes(5, 12), torch.randn(5, group_count)
    weights = dequantize(codes, scales)
    size = 12 // group_count
    for row in range(5):
        for column in range(12):
            expected = float(codes[row, column]) * float(scales[row, column // size])
            assert weights[row, column] == pytest.approx(expected, rel=1e-6)


def test_groups_that_do_not_divide_the_inputs_are_refused() -> None:
    with pytest.raises(ValueError, match="3 groups do not divide K = 10"):
        dequantize(random_codes(2, 10), torch.ones(2, 3))


@pytest.mark.parametrize("rows", [1, 3, 17])
@pytest.mark.parametrize("group_count", [1, 2])
def test_the_linear_layer_equals_a_dense_one_on_dequantised_weights(rows: int, group_count: int) -> None:
    codes, scales = random_codes(7, 64), torch.rand(7, group_count).to(torch.float16)
    x = torch.randn(rows, 64, generator=torch.Generator().manual_seed(1))
    expected = x.double() @ dequantize(codes, scales).double().T
    error = (linear(x, pack(codes), scales) - expected).square().mean().sqrt()
    # float32 sums of 64 products: about sqrt(64) half-ulps, 5e-7 relative.
    assert error / expected.square().mean().sqrt() < 2e-6
