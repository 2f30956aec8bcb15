"""What the tuner tries, over which shapes."""

import pytest

from kernels.tuning.candidates import ROW_LIMITS, parts_of, tiles
from kernels.tuning.timing import ROTATED_BYTES, rotation
from kernels.w4a16.shapes import MODELS, shapes_of

SHAPES = [shape for model in MODELS for _, shape in shapes_of(model)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_candidate_divides_the_outputs(shape):
    padded = -(-shape.out_features // 64) * 64
    for rows in ROW_LIMITS:
        for parts in parts_of(padded, shape.in_features, 132):
            found = tiles(rows, padded, parts)
            assert found
            assert all(tile.rows == rows and padded % tile.outputs == 0 for tile in found)
            assert all(parts % tile.split == 0 for tile in found)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_parts_stay_within_the_chunks_of_k(shape):
    padded = -(-shape.out_features // 64) * 64
    found = parts_of(padded, shape.in_features, 132)
    assert found == sorted(set(found))
    assert found[0] >= 1 and found[-1] <= min(16, -(-shape.in_features // 128))


def test_products_have_the_sizes_of_their_models():
    sizes = {shape.name: (shape.out_features, shape.in_features) for shape in MODELS["8b"].products}
    assert sizes == {
        "qkv": (6144, 4096),
        "o": (4096, 4096),
        "gate_up": (28672, 4096),
        "down": (4096, 14336),
    }
    halves = {shape.name: (shape.out_features, shape.in_features) for shape in MODELS["70b-tp2"].products}
    assert (halves["down"], halves["qkv"]) == ((8192, 14336), (5120, 8192))


def test_unknown_models_are_named():
    with pytest.raises(ValueError, match="no model '9b'; known: smollm2, 8b"):
        shapes_of("8b,9b")


@pytest.mark.parametrize("nbytes", [1, 8_700_000, 61_000_000, 10**9])
def test_rotations_leave_nothing_in_the_cache(nbytes):
    copies = rotation(nbytes)
    assert copies >= 2
    assert copies * nbytes >= ROTATED_BYTES or copies == 64
