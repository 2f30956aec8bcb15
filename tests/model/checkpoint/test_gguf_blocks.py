import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from spearhead.errors import CheckpointError
from spearhead.model.checkpoint.gguf_blocks import decode_blocks, is_decoded

HALF_ONE, HALF_MINUS_TWO = b"\x00\x3c", b"\x00\xc0"


def rows(*blocks: bytes) -> np.ndarray:
    return np.frombuffer(b"".join(blocks), dtype=np.uint8).reshape(1, -1)


@pytest.mark.parametrize("kind", [Kind.Q4_0, Kind.Q4_1, Kind.Q8_0])
def test_blocks_dequantise_to_what_the_library_makes_of_them(kind: Kind) -> None:
    weights = np.random.default_rng(0).normal(size=(5, 96)).astype(np.float32)
    weights[1, 32:64] = 0
    data = gguf.quantize(weights, kind)
    decoded = decode_blocks(data, kind, where="w")
    assert torch.equal(decoded.dequantize(), torch.from_numpy(gguf.dequantize(data, kind)))
    assert decoded.codes.shape == (5, 96)
    assert decoded.scales.shape == (5, 3)
    assert decoded.bits == (8 if kind == Kind.Q8_0 else 4)
    assert decoded.symmetric == (kind != Kind.Q4_1)


def test_negative_scales_stay_negative() -> None:
    """Q4_0 takes the sign of the largest weight, so that flipping it would need a code of +8."""
    decoded = decode_blocks(
        gguf.quantize(np.ones((1, 32), dtype=np.float32), Kind.Q4_0), Kind.Q4_0, where="w"
    )
    assert decoded.scales.tolist() == [[-0.125]]
    assert decoded.codes.unique().tolist() == [-8]


def test_the_low_halves_of_the_bytes_are_the_first_sixteen_weights() -> None:
    codes = bytes(low | (15 - low) << 4 for low in range(16))
    decoded = decode_blocks(rows(HALF_MINUS_TWO, codes), Kind.Q4_0, where="w")
    assert decoded.scales.tolist() == [[-2.0]]
    assert decoded.codes.tolist() == [[*range(-8, 8), *range(7, -9, -1)]]
    shifted = decode_blocks(rows(HALF_ONE, HALF_MINUS_TWO, codes), Kind.Q4_1, where="w")
    assert shifted.dequantize().tolist() == [[*range(-2, 14), *range(13, -3, -1)]]


@pytest.mark.parametrize("kind", [Kind.Q4_0, Kind.Q4_1])
def test_a_scale_that_is_not_finite_is_named(kind: Kind) -> None:
    infinity = b"\x00\x7c"
    middle = HALF_ONE if kind == Kind.Q4_1 else b""
    with pytest.raises(CheckpointError, match="tensor w has a block whose scale is NaN or infinite"):
        decode_blocks(rows(infinity, middle, bytes(16)), kind, where="w")


def test_other_types_are_not_decoded() -> None:
    assert [kind for kind in Kind if is_decoded(kind)] == [Kind.Q4_0, Kind.Q4_1, Kind.Q8_0]
