"""What records refuse, and what they derive."""

import dataclasses
import math
from collections.abc import Callable

import pytest

from spearhead.errors import CalibrationError
from spearhead.quant.report import (
    Damage,
    DamageKind,
    KlDifference,
    LossPoint,
    Quantizer,
    RankCorrelation,
    RecoveryReport,
    Rung,
    TextScore,
    TrainingRun,
    VariantRow,
)

MakeReport = Callable[..., RecoveryReport]


def row(**changes: object) -> VariantRow:
    fields: dict[str, object] = {
        "variant": "RTN + trained", "convention": "absmax/7.5", "perplexity": 35.0,
        "full_precision_perplexity": 30.0, "start_perplexity": 50.0, "start_kl": 0.8, "kl_mean": 0.2,
        "kl_median": 0.1, "kl_p99": 2.0, "top1_agreement": 0.8, "served_bytes": 100,
    }  # fmt: skip
    return VariantRow(**(fields | changes))  # type: ignore[arg-type]


def test_percentages_follow_from_what_they_would_hide() -> None:
    assert row().gap_closed_percent == pytest.approx(75.0)
    assert row().kl_closed_percent == pytest.approx(75.0)
    assert row().perplexity_ratio == pytest.approx(35 / 30)


def test_no_gap_has_no_percentage() -> None:
    assert row(start_perplexity=30.0).gap_closed_percent is None
    assert row(start_kl=0.0).kl_closed_percent is None


@pytest.mark.parametrize("field", ["convention", "perplexity", "kl_mean", "start_perplexity"])
def test_a_row_cannot_be_built_without_what_a_percentage_hides(field: str) -> None:
    fields = {
        one.name: getattr(row(), one.name) for one in dataclasses.fields(VariantRow) if one.name != field
    }
    with pytest.raises(TypeError, match=field):
        VariantRow(**fields)


@pytest.mark.parametrize("convention", ["", "  "])
def test_an_empty_convention_is_refused(convention: str) -> None:
    with pytest.raises(CalibrationError, match="convention"):
        row(convention=convention)
    with pytest.raises(CalibrationError, match="convention"):
        Quantizer(description="RTN", convention=convention)


def test_the_convention_is_shown_once() -> None:
    named = Quantizer(description="w4 symmetric, per channel, absmax/7.5", convention="absmax/7.5")
    assert named.full_description == "w4 symmetric, per channel, absmax/7.5"
    assert Quantizer(description="RTN", convention="absmax/7").full_description == "RTN, absmax/7"


@pytest.mark.parametrize("perplexity", [0.0, -1.0, math.nan, math.inf])
def test_what_cannot_be_a_perplexity_is_refused(perplexity: float) -> None:
    with pytest.raises(CalibrationError, match="perplexity"):
        row(perplexity=perplexity)
    with pytest.raises(CalibrationError, match="perplexity on a"):
        TextScore(text="a", perplexity=perplexity, kl=0.0)


def test_rounding_around_a_limit_is_forgiven_and_more_is_not() -> None:
    assert row(top1_agreement=1 + 1e-9).top1_agreement > 1
    with pytest.raises(CalibrationError, match=r"top1_agreement is 1\.01"):
        row(top1_agreement=1.01)
    with pytest.raises(CalibrationError, match=r"damage\.value is -0\.1"):
        Damage(kind=DamageKind.KL, value=-0.1)
    with pytest.raises(CalibrationError, match="spearman"):
        RankCorrelation(first=DamageKind.KL, second=DamageKind.CKA_FINAL, spearman=-1.2)


def test_a_module_knows_its_damage_by_kind(make_report: MakeReport) -> None:
    module = make_report().modules[0]
    only = dataclasses.replace(module, damage=(Damage(kind=DamageKind.KL, value=0.5),))
    assert only.damage_by(DamageKind.KL) == 0.5
    assert only.damage_by(DamageKind.CKA_FINAL) is None


def test_a_rising_spectrum_is_refused(make_report: MakeReport) -> None:
    spectrum = make_report().spectrum
    assert spectrum is not None
    with pytest.raises(CalibrationError, match="rises"):
        dataclasses.replace(spectrum, shares=(0.2, 0.8))


def test_steps_must_rise() -> None:
    point = LossPoint(step=3, train_kl=0.1, held_out_kl=None)
    with pytest.raises(CalibrationError, match="steps do not rise"):
        TrainingRun(rung=Rung.TRAINED, seed=1, points=(point, point), best_step=3, early_stop_step=None)


@pytest.mark.parametrize(("low", "high", "confidence"), [(1.0, 0.0, 0.95), (0.0, 1.0, 1.0), (0.0, 1.0, 0.0)])
def test_an_interval_has_ends_in_order_and_a_confidence(low: float, high: float, confidence: float) -> None:
    with pytest.raises(CalibrationError, match="interval"):
        KlDifference(mean=0.5, low=low, high=high, confidence=confidence)


def test_a_byte_ratio_is_ours_over_theirs(make_report: MakeReport) -> None:
    ratio = make_report().byte_ratios[0]
    assert ratio.percent == pytest.approx(100 * 973_234 / 8_661_786)


def test_a_text_knows_what_closes_its_gap(make_report: MakeReport) -> None:
    text = make_report().texts[0]
    assert text.gap_closed_percent(text.full_precision_perplexity) == pytest.approx(100)
    assert text.gap_closed_percent(text.w4_perplexity) == pytest.approx(0)
    assert text.kl_closed_percent(text.w4_kl / 4) == pytest.approx(75)
