import dataclasses
import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from spearhead.errors import CalibrationError
from spearhead.quant.report import (
    ByteRatio,
    Damage,
    DamageKind,
    EvaluationTable,
    Identity,
    KlDifference,
    LossPoint,
    ModuleRow,
    QualityPoint,
    QualitySeries,
    Quantizer,
    RankCorrelation,
    RecoveryReport,
    Rung,
    RungResult,
    SeriesKind,
    SidePoint,
    SoftwareVersion,
    Spectrum,
    StageTime,
    TextReference,
    TextScore,
    TrainingRun,
    VariantRow,
    report_html,
)

MakeReport = Callable[..., RecoveryReport]

texts = st.text(max_size=8) | st.just("\ud800 \0 <script>")
shown = texts.map(lambda text: f"n{text}")
counts = st.integers(0, 10**15)
positive = st.integers(1, 10**15)
shares = st.floats(0, 1)
numbers = st.floats(-1e9, 1e9)
perplexities = st.floats(1, 1e12)
seeds = st.integers(-(2**63), 2**63)


def tuples(
    items: st.SearchStrategy[Any], most: int = 3, **options: Any
) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(items, max_size=most, **options).map(tuple)


identities = st.builds(
    Identity,
    model=texts, revision=texts, w4_digest=texts, w4_bytes=positive, full_precision_bytes=positive,
    seed=seeds, device=texts, commands=tuples(texts),
    quantizer=st.builds(Quantizer, description=shown, convention=shown),
    versions=tuples(st.builds(SoftwareVersion, package=texts, version=texts)),
    stages=tuples(st.builds(StageTime, stage=texts, duration_s=st.floats(0, 1e9))),
)  # fmt: skip
modules = tuples(
    st.builds(
        ModuleRow,
        name=texts, layer=st.integers(0, 10**9), projection=texts,
        output_width=positive, input_width=positive,
        damage=tuples(st.builds(Damage, kind=st.sampled_from(DamageKind), value=st.floats(0, 1e9))),
        share=shares, rank=counts, compensator_bytes=counts, reason=texts, energy=st.none() | shares,
    ),
    most=6, unique_by=(lambda one: one.name, lambda one: (one.layer, one.projection)),
)  # fmt: skip
spectra = st.builds(
    Spectrum,
    kind=st.sampled_from(DamageKind),
    shares=st.lists(shares, max_size=8).map(lambda found: tuple(sorted(found, reverse=True))),
    entropy_nats=st.floats(0, 30), entropy_normalized=shares, effective_count=st.floats(0, 1e6),
    chosen_count=st.integers(0, 10**6),
    correlations=tuples(
        st.builds(RankCorrelation, first=st.sampled_from(DamageKind), second=st.sampled_from(DamageKind),
                  spearman=st.floats(-1, 1))
    ),
)  # fmt: skip
points = st.lists(
    st.builds(
        LossPoint, step=counts, train_kl=st.none() | numbers, held_out_kl=st.none() | numbers
    ),
    max_size=5, unique_by=lambda point: point.step,
).map(lambda found: tuple(sorted(found, key=lambda point: point.step)))  # fmt: skip
training = tuples(
    st.builds(
        TrainingRun, rung=st.sampled_from(Rung), seed=seeds, points=points, best_step=counts,
        early_stop_step=st.none() | counts,
    ),
    unique_by=lambda run: (run.rung, run.seed),
)  # fmt: skip
intervals = st.tuples(numbers, numbers, numbers, st.floats(0.01, 0.99)).map(
    lambda found: KlDifference(mean=found[0], low=min(found[1:3]), high=max(found[1:3]), confidence=found[3])
)


@st.composite
def reports(draw: st.DrawFn) -> RecoveryReport:
    references = draw(
        tuples(
            st.builds(
                TextReference, name=texts, digest=texts, protocol=texts, token_count=positive,
                full_precision_perplexity=perplexities, w4_perplexity=perplexities, w4_kl=numbers,
            ),
            unique_by=lambda one: one.name,
        )
    )  # fmt: skip
    names = [reference.name for reference in references]

    def of_a_text(items: Callable[[st.SearchStrategy[str]], st.SearchStrategy[Any]], **options: Any) -> Any:
        return tuples(items(st.sampled_from(names)), **options) if names else st.just(())

    scored = of_a_text(
        lambda name: st.builds(TextScore, text=name, perplexity=perplexities, kl=numbers),
        unique_by=lambda score: score.text,
    )
    rungs = tuples(
        st.builds(
            RungResult, rung=st.sampled_from(Rung), compensator_bytes=counts, texts=scored,
            held_out_kl=numbers, difference=st.none() | intervals, kept=st.booleans(), reason=texts,
        ),
        most=4, unique_by=lambda rung: rung.rung,
    )  # fmt: skip
    quality_points = st.builds(
        QualityPoint, budget_percent=st.floats(0, 1e6), compensator_bytes=counts,
        mean_rank=st.floats(0, 1e6), seed=st.none() | seeds, texts=scored,
    )  # fmt: skip
    series = tuples(
        st.builds(QualitySeries, name=texts, kind=st.sampled_from(SeriesKind), points=tuples(quality_points)),
        unique_by=lambda one: one.name,
    )
    sides = st.builds(
        SidePoint, series=texts, compensator_bytes=positive, perplexity=perplexities, kl=numbers
    )
    rows = st.builds(
        VariantRow, variant=texts, convention=shown, perplexity=perplexities,
        full_precision_perplexity=perplexities, start_perplexity=perplexities, start_kl=numbers,
        kl_mean=numbers, kl_median=numbers, kl_p99=numbers, top1_agreement=shares, served_bytes=positive,
    )  # fmt: skip
    return RecoveryReport(
        identity=draw(identities),
        texts=references,
        modules=draw(modules),
        spectrum=draw(st.none() | spectra),
        training=draw(training),
        rungs=draw(rungs),
        series=draw(series),
        byte_ratios=draw(
            of_a_text(
                lambda name: st.builds(
                    ByteRatio, text=name, convention=shown, ours=sides, baseline=sides, reached=st.booleans()
                )
            )
        ),
        evaluations=draw(
            of_a_text(
                lambda name: st.builds(
                    EvaluationTable, text=name, rows=tuples(rows, unique_by=lambda row: row.variant)
                ),
                unique_by=lambda table: table.text,
            )
        ),
        warnings=draw(tuples(texts)),
    )


# Documents are large: to make a failing one small would take minutes.
@settings(max_examples=40, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate),
          suppress_health_check=(HealthCheck.too_slow, HealthCheck.data_too_large))  # fmt: skip
@given(reports())
def test_any_report_reads_back_equal_and_has_a_page(report: RecoveryReport) -> None:
    written = report.to_json()
    assert RecoveryReport.from_json(written) == report
    assert RecoveryReport.from_json(written).to_json() == written
    page = report_html(report)
    assert page.encode("utf-8") and "<script" not in page and "nan" not in _coordinates(page)


def _coordinates(page: str) -> str:
    """All path data of a page, joined."""
    return " ".join(part.partition('"')[0] for part in page.split(' d="')[1:])


def test_the_sample_reads_back_equal(make_report: MakeReport) -> None:
    assert RecoveryReport.from_json(make_report().to_json()) == make_report()


def test_a_number_that_is_not_finite_is_refused_with_its_path(make_report: MakeReport) -> None:
    report = make_report()
    point = LossPoint(step=0, train_kl=math.nan, held_out_kl=None)
    run = dataclasses.replace(report.training[0], points=(point,))
    with pytest.raises(CalibrationError, match=r"training\[0\]\.points\[0\]\.train_kl is nan"):
        dataclasses.replace(report, training=(run,))
    data = json.loads(report.to_json())
    data["rungs"][2]["held_out_kl"] = math.inf
    with pytest.raises(CalibrationError, match=r"rungs\[2\]\.held_out_kl is inf"):
        RecoveryReport.from_json(json.dumps(data))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "not a recovery report"),
        ("{}", "not a recovery report"),
        ('{"format": "spearhead recovery report"}', "version None"),
        ('{"format": "spearhead recovery report", "version": 2}', "version 2"),
        ('{"format": "spearhead recovery report", "version": true}', "version True"),
        ('{"format": "spearhead recovery report", "version": 1}', "missing"),
        ('{"format": "spearhead recovery report", "format": "x"}', "twice"),
    ],
)
def test_another_file_is_refused(text: str, message: str) -> None:
    with pytest.raises(CalibrationError, match=message):
        RecoveryReport.from_json(text)


def test_a_text_that_is_not_described_cannot_be_named(make_report: MakeReport) -> None:
    report = make_report()
    with pytest.raises(CalibrationError, match=r"rungs\.w4\.texts names the text 'WikiText-2'"):
        dataclasses.replace(report, texts=report.texts[1:])


@pytest.mark.parametrize("field", ["texts", "modules", "training", "rungs", "series", "evaluations"])
def test_nothing_stands_twice(make_report: MakeReport, field: str) -> None:
    report = make_report()
    first = getattr(report, field)[0]
    with pytest.raises(CalibrationError, match=f"report field {field} has .* twice"):
        dataclasses.replace(report, **{field: (first, first)})


def test_two_modules_cannot_share_a_cell(make_report: MakeReport) -> None:
    first = make_report().modules[0]
    with pytest.raises(CalibrationError, match="layer 0"):
        make_report(modules=(first, dataclasses.replace(first, name="another")))


def test_a_text_is_scored_once_and_a_variant_has_one_row(make_report: MakeReport) -> None:
    report = make_report()
    rung, table = report.rungs[0], report.evaluations[0]
    with pytest.raises(CalibrationError, match=r"rungs\.w4\.texts has 'WikiText-2' twice"):
        make_report(rungs=(dataclasses.replace(rung, texts=rung.texts[:1] * 2),))
    with pytest.raises(CalibrationError, match=r"evaluations\.WikiText-2\.rows has 'RTN' twice"):
        make_report(evaluations=(dataclasses.replace(table, rows=table.rows[:1] * 2),))
