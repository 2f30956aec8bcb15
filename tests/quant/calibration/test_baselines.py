from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from spearhead.quant.calibration import (
    CalibrationOutcome,
    CalibrationRequest,
    OutcomeOptions,
    calibrate,
)
from spearhead.quant.calibration.baseline_forms import Method
from spearhead.quant.calibration.baselines import BaselinePlan
from spearhead.quant.calibration.progress import silent
from spearhead.quant.calibration.report import Surroundings
from spearhead.quant.report import RecoveryReport

Artefact = Callable[..., Path]
Request = Callable[..., CalibrationRequest]
PLAN = BaselinePlan(
    budgets=(0.08, 0.12), ratios=(Method.L2QER, Method.LOFTQ), max_rank=8, random_seeds=(0, 1)
)


def _report(request: CalibrationRequest, plan: BaselinePlan) -> RecoveryReport:
    nowhere = Surroundings(versions={"torch": "x"}, commands=("spearhead",), device="here")
    outcome = CalibrationOutcome(OutcomeOptions(baselines=plan), nowhere, silent)
    calibrate(request, begin=outcome.read, finish=outcome.score, after=outcome.publish)
    assert outcome.report_folder == request.artefact / "spear/report"
    return RecoveryReport.from_json((outcome.report_folder / "report.json").read_text())


def test_every_method_and_placement_is_scored_at_equal_bytes(
    artefact: Artefact, request_for: Request
) -> None:
    report = _report(request_for(artefact()), PLAN)
    points = {series.name: series.points for series in report.series}
    assert set(points) == {
        *(method.value for method in Method), "ours, static", "ours, trained", "uniform, trained",
        "random modules, trained", "water-filling, trained",
    }  # fmt: skip
    assert {point.seed for point in points["random modules, trained"]} == {0, 1}
    budgets = {8.0: 0.08 * report.identity.w4_bytes, 12.0: 0.12 * report.identity.w4_bytes}
    for series in points.values():
        for point in series:
            assert point.compensator_bytes <= budgets[round(point.budget_percent)]
            # The widest module takes 2 (64 + 96) bytes a rank.
            assert point.compensator_bytes > budgets[round(point.budget_percent)] - 320
    # Closed forms of more rank are better, and statistics beat none.
    exact, plain = (
        {point.compensator_bytes: point.texts[0].kl for point in points[method]}
        for method in (Method.QERA_EXACT, Method.LQER)
    )
    assert list(exact) == list(plain) and all(exact[size] < plain[size] for size in exact)
    assert exact[max(exact)] < exact[min(exact)]


def test_a_series_whose_ranks_are_lowered_says_so(artefact: Artefact, request_for: Request) -> None:
    plan = BaselinePlan(budgets=(0.3,), methods=(Method.LQER,), ratios=(), max_rank=2, random_seeds=())
    report = _report(request_for(artefact()), plan)
    (lowered,) = [series for series in report.series if series.name.startswith(Method.LQER)]
    assert lowered.name == "LQER (plain SVD), no rank over 2"
    assert {point.mean_rank for point in lowered.points} == {2}


def test_bytes_at_equal_perplexity_are_the_least_that_reach_it(
    artefact: Artefact, request_for: Request
) -> None:
    report = _report(request_for(artefact()), replace(PLAN, budgets=(), methods=(), random_seeds=()))
    assert {ratio.baseline.series for ratio in report.byte_ratios} == {"L²QER", "LoftQ"}
    for ratio in report.byte_ratios:
        assert ratio.reached == (ratio.baseline.perplexity <= ratio.ours.perplexity)
        assert ratio.convention == "absmax/7.5"


def test_loftq_is_left_out_where_its_rounding_is_not_known(artefact: Artefact, request_for: Request) -> None:
    plan = replace(PLAN, budgets=(), random_seeds=(), ratios=(Method.LOFTQ,))
    report = _report(request_for(artefact(method="rtn-clip-unweighted")), plan)
    assert Method.LOFTQ not in {series.name for series in report.series}
    assert not report.byte_ratios
