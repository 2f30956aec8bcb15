import pytest

from spearhead.quant.report import KlDifference, formats


def test_small_and_large_numbers_stay_readable() -> None:
    assert [formats.perplexity(value) for value in (30.094, 3.4e6)] == ["30.09", "3.40e6"]
    assert [formats.kl(value) for value in (None, 0.0, 0.9537, 0.0000123)] == [
        "–",
        "0.0000",
        "0.9537",
        "1.23e-5",
    ]
    assert [formats.damage(value) for value in (None, 0.012345)] == ["–", "0.0123"]
    assert [formats.ratio(value) for value in (1.19, 12345.0)] == ["1.190×", "1.23e4×"]


def test_percentages_have_no_negative_zero() -> None:
    found = [formats.percent(value) for value in (None, -1e-15, 0.365, 83.94, -12.31)]
    assert found == ["–", "0.00%", "0.36%", "83.9%", "−12.3%"]


@pytest.mark.parametrize(
    ("value", "written"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (250_000, "250 kB"), (1.5e6, "1.5 MB"), (3e16, "3e+04 TB")],
)
def test_sizes_have_decimal_units(value: float, written: str) -> None:
    assert formats.size(value) == written


@pytest.mark.parametrize(
    ("seconds", "written"), [(0.04, "0.0 s"), (53.2, "53.2 s"), (243, "4 min 3 s"), (7500, "2 h 5 min")]
)
def test_durations_have_the_units_of_their_length(seconds: float, written: str) -> None:
    assert formats.duration(seconds) == written


@pytest.mark.parametrize(
    ("value", "written"),
    [(0, "0"), (0.25, "0.25"), (1e-6, "1e-6"), (20000, "20000"), (1e7, "1e7"), (-2e5, "-2e5")],
)
def test_tick_labels_are_short(value: float, written: str) -> None:
    assert formats.tick(value) == written


def test_a_difference_shows_signs_and_interval() -> None:
    value = KlDifference(mean=-0.0168, low=-0.0192, high=0.001, confidence=0.95)
    assert formats.difference(value) == "−0.0168 (95%: −0.0192 to +0.001)"
    assert formats.difference(None) == formats.NONE
