import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from spearhead.errors import CheckpointError
from spearhead.model.checkpoint.factor_codec import FactorBits, decode_factor, encode_factor

STEPS: dict[FactorBits, float] = {8: 1 / 127, 4: 1 / 7}


def random_factor(rank: int, length: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rank, length, generator=generator) * torch.logspace(-3, 3, rank)[:, None]


@given(
    rank=st.integers(1, 4), length=st.integers(1, 19), seed=st.integers(0, 99), bits=st.sampled_from([8, 4])
)
def test_a_decoded_factor_is_within_half_a_step_of_its_row(
    rank: int, length: int, seed: int, bits: FactorBits
) -> None:
    factor = random_factor(rank, length, seed)
    decoded = decode_factor(encode_factor(factor, bits=bits))
    step = factor.abs().amax(dim=1, keepdim=True) * STEPS[bits]
    assert decoded.shape == factor.shape
    assert bool(((decoded - factor).abs() <= 0.5001 * step).all())


@given(length=st.integers(1, 19), seed=st.integers(0, 99), bits=st.sampled_from([16, 8, 4]))
def test_encoding_what_was_decoded_changes_nothing(length: int, seed: int, bits: FactorBits) -> None:
    decoded = decode_factor(encode_factor(random_factor(3, length, seed), bits=bits))
    assert torch.allclose(decode_factor(encode_factor(decoded, bits=bits)), decoded, rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bits_are_a_conversion(dtype: torch.dtype) -> None:
    factor = random_factor(3, 8)
    encoded = encode_factor(factor, bits=16, dtype=dtype)
    assert encoded.scales is None
    assert torch.equal(decode_factor(encoded), factor.to(dtype).float())


def test_four_bit_codes_sit_in_words_from_the_low_end() -> None:
    factor = torch.tensor([[7.0, -7.0, 0.0, 1.0, 2.0, 3.0, -1.0, -2.0, 5.0]])
    encoded = encode_factor(factor, bits=4)
    assert encoded.scales is not None
    assert encoded.scales.tolist() == [1.0]
    assert encoded.values.view(torch.uint8).tolist() == [[0x1F, 0x98, 0xBA, 0x67, 0x0D, 0, 0, 0]]


@pytest.mark.parametrize("bits", [8, 4])
def test_a_row_of_zeros_stays_zero(bits: FactorBits) -> None:
    factor = torch.tensor([[0.0, 0.0, 0.0], [1.0, -1.0, 0.0]])
    assert torch.equal(decode_factor(encode_factor(factor, bits=bits)), factor)


@pytest.mark.parametrize("bits", [16, 8, 4])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_is_refused(bits: FactorBits, value: float) -> None:
    with pytest.raises(CheckpointError, match=r"factor \(1, 2\) holds NaN or infinity"):
        encode_factor(torch.tensor([[1.0, value]]), bits=bits)


def test_a_value_beyond_the_range_of_the_stored_type_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"holds NaN or infinity as torch\.float16; fit it again"):
        encode_factor(torch.tensor([[1e5]]), bits=16, dtype=torch.float16)
