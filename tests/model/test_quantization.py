from typing import Any

import pytest
import torch
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import quantize as their_quantize

from spearhead.errors import ConfigError
from spearhead.model.quantization import QuantizationScheme, QuantizedWeight, dequantize, rtn

SCHEMES = ["tensor", "channel", "group32", "group64", "group128"]


def random_weight(rows: int = 6, columns: int = 256, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("text", [f"{scheme}/{c}" for scheme in SCHEMES for c in ("7", "7.5", "8")])
def test_a_scheme_prints_as_what_it_was_read_from(text: str) -> None:
    assert str(QuantizationScheme.parse(text)) == text


def test_the_convention_is_seven_and_a_half_unless_said() -> None:
    assert QuantizationScheme.parse("group32") == QuantizationScheme.parse("group32/7.5")
    assert QuantizationScheme.parse("group32").description == "w4 symmetric, group 32, absmax/7.5"
    assert QuantizationScheme.parse("channel/7").description == "w4 symmetric, per channel, absmax/7"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("int4", "'int4' is not understood; write tensor, channel, group32"),
        ("", "is not understood"),
        ("group", r"group size is 0; it must be one of \(32, 64, 128\)"),
        ("group48", "group size is 48"),
        ("channel32", "group size 32 is given for granularity channel"),
        ("group32/6", "convention is 6"),
    ],
)
def test_a_scheme_that_cannot_be_is_refused_with_the_choices(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        QuantizationScheme.parse(text)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("convention", ["7", "7.5", "8"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_code_is_the_nearest_one_to_its_weight(
    scheme: str, convention: str, dtype: torch.dtype
) -> None:
    weight = random_weight()
    codes, scales = rtn(weight, QuantizationScheme.parse(f"{scheme}/{convention}"), dtype)
    assert scales.dtype == dtype
    wide = scales.float().repeat_interleave(256 // scales.shape[1], dim=1)
    candidates = wide[..., None] * torch.arange(-8, 8)  # (N, K, 16)
    nearest = (candidates - weight[..., None]).abs().amin(dim=2)
    # The codes come from the stored scale: no other code may be nearer, up to one float32 rounding.
    assert float(((dequantize(codes, scales) - weight).abs() - nearest).max()) < 1e-6


@pytest.mark.parametrize(("scheme", "columns"), [("tensor", 1), ("channel", 1), ("group64", 4)])
def test_scales_follow_the_largest_weight_of_what_shares_them(scheme: str, columns: int) -> None:
    weight = random_weight()
    _, scales = rtn(weight, QuantizationScheme.parse(scheme), torch.float32)
    largest = weight.reshape(6, columns, -1).abs().amax(dim=2)
    expected = largest.amax().expand(6, 1) if scheme == "tensor" else largest
    torch.testing.assert_close(scales, expected / 7.5)


@pytest.mark.parametrize("strategy", ["channel", "group"])
def test_codes_equal_those_of_compressed_tensors_for_the_same_scales(strategy: str) -> None:
    weight = random_weight()
    codes, scales = rtn(
        weight, QuantizationScheme.parse({"group": "group64"}.get(strategy, strategy)), torch.float32
    )
    args = QuantizationArgs(
        num_bits=4, symmetric=True, strategy=strategy, group_size=64 if strategy == "group" else None
    )
    theirs = their_quantize(weight, scales, torch.zeros_like(scales), args, dtype=torch.int8)
    assert torch.equal(codes, theirs)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_zeros_get_scale_one_and_code_zero(scheme: str) -> None:
    codes, scales = rtn(torch.zeros(3, 128), QuantizationScheme.parse(scheme), torch.float16)
    assert torch.equal(scales, torch.ones_like(scales))
    assert not codes.any()


def test_a_group_of_zeros_among_others_leaves_them_alone() -> None:
    weight = random_weight(2, 64)
    weight[0, :32] = 0
    codes, scales = rtn(weight, QuantizationScheme.parse("group32"), torch.float16)
    assert float(scales[0, 0]) == 1.0
    assert not codes[0, :32].any()
    assert (scales.flatten()[1:] < 1).all()


def test_tiny_weights_get_a_normal_scale() -> None:
    _, scales = rtn(torch.full((1, 32), 1e-7), QuantizationScheme.parse("channel"), torch.float16)
    assert float(scales) == torch.finfo(torch.float16).tiny


def test_only_matching_group_sizes_fit() -> None:
    assert QuantizationScheme.parse("group64").fits(128)
    assert not QuantizationScheme.parse("group64").fits(96)
    assert QuantizationScheme.parse("channel").fits(97)


def random_codes(rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-8, 8, (rows, columns), generator=generator).to(torch.int8)


@pytest.mark.parametrize("rows", [1, 3, 513])
def test_symmetric_codes_dequantise_as_the_kernel_defines(rows: int) -> None:
    codes, scales = random_codes(rows, 96), random_weight(rows, 3).half()
    weight = QuantizedWeight(bits=4, codes=codes, scales=scales)
    assert weight.symmetric
    assert torch.equal(weight.dequantize(), dequantize(codes, scales))


def test_zeros_minimums_and_scattered_inputs_enter_as_written() -> None:
    codes, scales, minimums = (
        random_codes(5, 10),
        random_weight(5, 2).half(),
        random_weight(5, 2, seed=1).half(),
    )
    zeros = torch.arange(-5, 5, dtype=torch.int16).reshape(5, 2)
    index = torch.tensor([0, 1, 1, 0, 1, 0, 0, 0, 1, 0], dtype=torch.int32)
    weight = QuantizedWeight(
        bits=4, codes=codes, scales=scales, zeros=zeros, minimums=minimums, group_index=index
    )
    assert not weight.symmetric
    found = weight.dequantize()
    for n in range(5):
        for k in range(10):
            g = int(index[k])
            expected = float(codes[n, k] - zeros[n, g]) * scales[n, g].float() + minimums[n, g].float()
            assert found[n, k] == expected


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bits": 3}, "3-bit codes"),
        ({"codes": torch.zeros(4, 8)}, r"4-bit codes are torch\.float32"),
        ({"scales": torch.ones(4, 3)}, "3 groups do not divide K = 8"),
        ({"scales": torch.ones(5, 2)}, r"\(5, 2\) does not fit codes \(4, 8\)"),
        ({"zeros": torch.zeros(4, 1)}, r"\(4, 1\) does not fit codes"),
        ({"group_index": torch.zeros(7)}, r"group index \(7,\) does not fit K = 8"),
    ],
)
def test_parts_that_do_not_fit_together_are_refused(change: dict[str, Any], message: str) -> None:
    parts = {"bits": 4, "codes": torch.zeros(4, 8, dtype=torch.int8), "scales": torch.ones(4, 2)}
    with pytest.raises(ValueError, match=message):
        QuantizedWeight(**(parts | change))
