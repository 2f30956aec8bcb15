from collections.abc import Callable

import pytest
import torch
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import quantize as their_quantize
from compressed_tensors.quantization.utils import calculate_qparams

from spearhead.model.quantization import QuantizationScheme, rtn
from spearhead.quant.methods.grid import Grid

Weights = Callable[..., torch.Tensor]


def grid(text: str, bits: int = 4) -> Grid:
    return Grid(scheme=QuantizationScheme.parse(text), bits=bits)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("text", ["tensor", "channel/7", "group32/8", "group64"])
def test_four_bits_are_those_that_the_services_round_to(
    weight: Weights, text: str, dtype: torch.dtype
) -> None:
    w = weight(columns=128)
    w[0, :64] = 0
    w[1] = 1e-9
    codes, scales = rtn(w, QuantizationScheme.parse(text), dtype)
    ours = grid(text)
    found = ours.scales(ours.largest(w), dtype)
    assert torch.equal(found, scales)
    assert torch.equal(ours.codes(w, found), codes)


def test_eight_bits_are_those_of_compressed_tensors(weight: Weights) -> None:
    w = weight()
    args = QuantizationArgs(num_bits=8, symmetric=True, strategy="channel")
    theirs, zeros = calculate_qparams(w.amin(1, keepdim=True), w.amax(1, keepdim=True), args)
    ours = grid("channel", bits=8)
    scales = ours.scales(ours.largest(w), torch.float32)
    torch.testing.assert_close(scales, theirs, rtol=1e-6, atol=0)
    assert torch.equal(ours.codes(w, theirs), their_quantize(w, theirs, zeros, args, dtype=torch.int8))


@pytest.mark.parametrize(("convention", "levels"), [("7", 127), ("7.5", 127.5), ("8", 128)])
def test_conventions_mean_the_same_on_eight_bits(convention: str, levels: float) -> None:
    assert grid(f"channel/{convention}", bits=8).levels == levels


def test_other_widths_are_refused() -> None:
    with pytest.raises(ValueError, match="bits are 3; they must be 4 or 8"):
        grid("channel", bits=3)
