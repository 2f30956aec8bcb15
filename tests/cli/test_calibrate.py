import json
from collections.abc import Callable
from pathlib import Path

import pytest

from spearhead.cli import main
from spearhead.quant.report import RecoveryReport

Factory = Callable[..., Path]
_QUICK = ["--budget", "8%", "--sequence-count", "120", "--sequence-length", "24", "--moments-sequences", "24"]
_QUICK += ["--damage-tokens", "96", "--max-rank", "8", "--steps", "6", "--sequences-per-step", "8"]
_QUICK += ["--evaluate-every", "2", "--learning-rate", "2e-3", "--device", "cpu", "--dtype", "float32"]


@pytest.fixture
def artefact(tiny_checkpoint: Factory, tmp_path: Path) -> Path:
    path = tmp_path / "w4"
    assert main(["quantize", str(tiny_checkpoint("llama")), str(path), "--scheme", "channel"]) == 0
    return path


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "fox.txt"
    path.write_text("The quick brown fox jumps over the lazy dog while the rain falls. " * 40)
    return path


def test_the_last_line_is_json_and_the_tables_before_it_say_all(
    artefact: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    arguments = ["calibrate", str(artefact), *_QUICK, "--text", str(text), "--length", "64"]
    assert main([*arguments, "--export-lora", str(artefact.parent / "adapter")]) == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out.splitlines()[-1])
    assert document["rung"] == "trained" and document["adapter_rung"] == "trained"
    assert set(document["metrics"]) == {"held-out self-samples", "fox"}
    assert set(document["metrics"]["fox"]) == {"full precision", "w4", "static", "trained"}
    assert "absmax/7.5" in captured.out and "served as variant w4+ec" in captured.out
    for stage in ("self-sampling", "statistics", "damage", "trained-from-static", "scores on fox"):
        assert stage in captured.err
    report = RecoveryReport.from_json((artefact / "spear" / "report" / "report.json").read_text())
    assert [rung.rung for rung in report.rungs] == ["w4", "static", "trained"]
    assert (artefact / "spear" / "report" / "report.html").exists()
