from collections.abc import Callable
from pathlib import Path

import pytest

from spearhead.quant.calibration import (
    CalibrationOutcome,
    CalibrationRequest,
    OutcomeOptions,
    calibrate,
)
from spearhead.quant.calibration.progress import silent
from spearhead.quant.calibration.report import Surroundings, convention
from spearhead.quant.evaluation import TextProtocol
from spearhead.quant.report import RecoveryReport


@pytest.mark.parametrize(
    ("quantization", "said"),
    [
        ("w4 symmetric, per channel, absmax/7.5", "absmax/7.5"),
        ("8 modules w4, absmax/7; 6 modules w8, absmax/127.5", "absmax/7 and absmax/127.5"),
        ("w4 gguf Q4_0, group 32", "the checkpoint's own scales"),
    ],
)
def test_a_convention_is_always_said(quantization: str, said: str) -> None:
    assert convention(quantization) == said


def test_a_report_holds_every_module_rung_curve_and_text(
    artefact: Callable[..., Path], request_for: Callable[..., CalibrationRequest], tmp_path: Path
) -> None:
    texts = (tmp_path / "one/fox.txt", tmp_path / "two/fox.txt")
    for text, words in zip(texts, ("quick brown fox ", "lazy dog jumps "), strict=True):
        text.parent.mkdir()
        text.write_text(words * 120)
    options = OutcomeOptions(
        texts=texts, protocol=TextProtocol(length=48, max_segments=4), report=tmp_path / "report"
    )
    surroundings = Surroundings(
        versions={"torch": "2"}, commands=("spearhead calibrate",), device="two cores"
    )
    outcome = CalibrationOutcome(options, surroundings, silent)
    request = request_for(artefact(), gate="auto", gate_min_rank=2)
    found = calibrate(request, begin=outcome.read, finish=outcome.score, after=outcome.publish)
    report = RecoveryReport.from_json((tmp_path / "report/report.json").read_text())
    assert "<html" in (tmp_path / "report/report.html").read_text()
    assert [text.name for text in report.texts] == ["held-out self-samples", "fox", str(texts[1])]
    assert len(report.modules) == 14
    assert {row.name: row.rank for row in report.modules if row.rank} == {
        module: len(one.a) for module, one in found.rungs[1].factors.items()
    }
    assert sum(row.compensator_bytes for row in report.modules) == found.chosen.compensator_bytes
    assert report.spectrum is not None and len(report.spectrum.correlations) == 1
    assert [run.rung for run in report.training] == ["trained", "gated"]
    assert [rung.rung for rung in report.rungs] == ["w4", "static", "trained", "gated"]
    table = report.evaluations[1]
    assert [row.variant for row in table.rows] == ["full precision", "w4", "static", "trained", "gated"]
    assert table.rows[0].convention == "none" and table.rows[1].convention == "absmax/7.5"
    assert abs(table.rows[0].kl_mean) < 1e-6
    assert {stage.stage for stage in report.identity.stages} >= {"self-sampling", "statistics", "damage"}
