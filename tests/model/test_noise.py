"""Shared noise: the right integers, the right law, random access."""

import numpy as np
import pytest
from scipy import stats

from spearhead.model.noise import MAX_NOISE, gumbel_noise, philox4x32, random_bits


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (
            (0xFFFFFFFF,) * 4,
            (0xFFFFFFFF,) * 2,
            (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
        ),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_matches_the_published_known_answers(counter, key, expected):
    words = tuple(np.array([word], np.uint64) for word in counter)
    assert tuple(int(lane[0]) for lane in philox4x32(key, words)) == expected


def test_a_token_gets_the_same_noise_alone_and_among_all():
    every = gumbel_noise(1234567890123456789, 77, np.arange(1003))
    for ids in (np.array([0]), np.array([1002, 5]), np.arange(3, 900, 7)):
        np.testing.assert_array_equal(gumbel_noise(1234567890123456789, 77, ids), every[ids])


def test_seed_and_position_each_change_the_noise():
    ids = np.arange(64)
    base = random_bits(1, 1, ids)
    for seed, position in ((2, 1), (1, 2), (1 + 2**32, 1), (1, 1 + 2**32)):
        assert (random_bits(seed, position, ids) != base).mean() > 0.9


def test_noise_is_standard_gumbel():
    """Kolmogorov-Smirnov on 200,000 draws; false alarm 1e-3 if the seed were random, it is fixed."""
    noise = np.concatenate([gumbel_noise(9, position, np.arange(2000)) for position in range(100)])
    assert stats.kstest(noise, "gumbel_r").pvalue > 1e-3


def test_noise_is_finite_and_below_its_bound():
    cells = np.array([0, 2**23 - 1], np.float32)
    extremes = -np.log(-np.log((cells + np.float32(0.5)) * np.float32(2.0**-23)))
    assert np.isfinite(extremes).all()
    assert extremes[1] < MAX_NOISE
