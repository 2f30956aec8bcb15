import numpy as np
import pytest

from spearhead.quant.evaluation import PairedBootstrap


def test_the_interval_of_a_mean_covers_the_truth_as_often_as_it_says() -> None:
    # 400 experiments of 40 segments. True coverage of a percentile interval at n = 40 is about 93.5%; with
    # 400 trials its standard error is 1.2 points, so 89.5% … 97.5% fails by chance once in a thousand.
    generator = np.random.default_rng(5)
    bootstrap = PairedBootstrap(40, draws=400, seed=1)
    covered = 0
    for _ in range(400):
        segments = generator.normal(0.3, 1, (40, 1)) + generator.normal(0, 2, (40, 16))
        found = bootstrap.interval(bootstrap.means(segments.astype(np.float32)))
        covered += found.low <= 0.3 <= found.high
    assert 0.895 <= covered / 400 <= 0.975


def test_pairing_finds_a_difference_that_two_intervals_would_hide() -> None:
    generator = np.random.default_rng(6)
    hard = generator.normal(3, 1, (30, 1))
    first = (hard + generator.normal(0, 0.05, (30, 20))).astype(np.float32)
    second = (first + 0.02 + generator.normal(0, 0.02, (30, 20))).astype(np.float32)
    bootstrap = PairedBootstrap(30)
    one, two = bootstrap.means(first), bootstrap.means(second)
    assert bootstrap.interval(one).high > bootstrap.interval(two).low
    difference = bootstrap.interval(two - one, null=0)
    assert difference.low > 0 and difference.p_value < 0.01
    ratio = bootstrap.interval(np.exp(two) / np.exp(one), null=1)
    assert ratio.value == pytest.approx(np.exp(difference.value)) and ratio.p_value == difference.p_value


def test_p_values_are_small_as_often_as_they_say_when_nothing_differs() -> None:
    # 400 trials at 5%: by chance outside 2% … 10% about once in a thousand (percentile bootstrap, n = 40).
    generator = np.random.default_rng(7)
    bootstrap = PairedBootstrap(40, draws=400)
    small = 0
    for _ in range(400):
        values = generator.normal(0, 1, (40, 1)).astype(np.float32)
        small += bootstrap.interval(bootstrap.means(values), null=0).p_value < 0.05
    assert 0.02 <= small / 400 <= 0.10


@pytest.mark.parametrize("units", [2, 3, 5])
def test_a_few_units_claim_no_certainty(units: int) -> None:
    # All have one sign, as happens once in 2**(units - 1) times though nothing differs.
    bootstrap = PairedBootstrap(units)
    found = bootstrap.interval(bootstrap.means(np.ones((units, 4), np.float32)), null=0)
    assert found.p_value == 2.0 ** (1 - units)


def test_missing_numbers_do_not_count_and_every_number_weighs_the_same() -> None:
    values = np.array([[1, 3, np.nan], [5, np.nan, np.nan]], np.float32)
    assert PairedBootstrap(2).means(values)[0] == 3


def test_infinity_does_not_vanish_from_a_mean() -> None:
    values = np.array([[1, np.inf], [2, np.nan]], np.float32)
    with np.errstate(invalid="ignore"):  # a resample that leaves the unit out takes it no times
        assert PairedBootstrap(2).means(values)[0] == np.inf


def test_the_same_seed_gives_the_same_resamples() -> None:
    values = np.arange(12, dtype=np.float32).reshape(6, 2)
    assert np.array_equal(PairedBootstrap(6, seed=3).means(values), PairedBootstrap(6, seed=3).means(values))
    assert not np.array_equal(
        PairedBootstrap(6, seed=4).means(values), PairedBootstrap(6, seed=3).means(values)
    )


def test_one_segment_has_a_value_but_no_interval() -> None:
    bootstrap = PairedBootstrap(1)
    found = bootstrap.interval(bootstrap.means(np.ones((1, 4), np.float32)), null=0)
    assert (found.value, found.low, found.high, found.p_value) == (1, None, None, None)
