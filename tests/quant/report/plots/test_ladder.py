from collections.abc import Callable
from xml.etree import ElementTree

import pytest

from spearhead.quant.report import KlDifference, RecoveryReport, Rung, RungResult
from spearhead.quant.report.plots import ladder_plot

MakeReport = Callable[..., RecoveryReport]


def rung(name: Rung, kl: float, difference: KlDifference | None, kept: bool = True) -> RungResult:
    return RungResult(
        rung=name,
        compensator_bytes=0,
        texts=(),
        held_out_kl=kl,
        difference=difference,
        kept=kept,
        reason="because",
    )


def test_the_dot_lies_within_its_whisker_when_the_mean_lies_within_the_interval() -> None:
    gain = KlDifference(mean=-0.1, low=-0.15, high=-0.06, confidence=0.95)
    root = ElementTree.fromstring(ladder_plot([rung(Rung.W4, 0.4, None), rung(Rung.TRAINED, 0.3, gain)]))
    dots = [float(dot.get("cx", "nan")) for dot in root.iter("circle")]
    whisker = next(path.get("d", "") for path in root.iter("path") if path.get("class") == "whisker")
    low, high = float(whisker[1:].split()[0]), float(whisker.partition("H")[2].partition("M")[0])
    assert low < dots[1] < high < dots[0]


def test_dropped_rungs_are_told_from_kept_ones(make_report: MakeReport) -> None:
    root = ElementTree.fromstring(ladder_plot(make_report().rungs))
    found = [group.get("class") for group in root.iter("g") if group.get("class") in ("kept", "dropped")]
    assert found == ["kept", "kept", "kept", "dropped"]


@pytest.mark.parametrize("kl", [0.0, -1e-9, 0.5])
def test_any_single_value_can_be_drawn(kl: float) -> None:
    root = ElementTree.fromstring(ladder_plot([rung(Rung.W4, kl, None)]))
    assert 90 <= float(next(root.iter("circle")).get("cx", "nan")) <= 470
