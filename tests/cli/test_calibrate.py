import argparse
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from spearhead.cli import calibrate, main
from spearhead.cli.calibration import config_from
from spearhead.quant.report import RecoveryReport

Factory = Callable[..., Path]
_QUICK = ["--budget", "8%", "--sequence-count", "120", "--sequence-length", "24", "--moments-sequences", "24"]
_QUICK += ["--damage-tokens", "96", "--max-rank", "8", "--steps", "32", "--sequences-per-step", "8"]
_QUICK += ["--evaluate-every", "8", "--learning-rate", "1e-3", "--device", "cpu", "--dtype", "float32"]


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


def test_baselines_go_into_the_report(artefact: Path) -> None:
    assert main(["calibrate", str(artefact), *_QUICK, "--baselines", "--baseline-rank", "8"]) == 0
    report = RecoveryReport.from_json((artefact / "spear" / "report" / "report.json").read_text())
    assert {"QERA-exact", "LoftQ", "ours, trained"} <= {series.name for series in report.series}
    assert {ratio.baseline.series for ratio in report.byte_ratios} == {"L²QER", "QERA-exact", "LoftQ"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--budget", "1.5"],
            "--budget '1.5' is not understood; give a share such as 1% or a number of bytes",
        ),
        (["--budget", "100%"], "--budget '100%' is not understood"),
        (["--budget", "0"], "--budget '0' is not understood"),
        (["--budget", "50"], "the budget of 50 bytes holds no compensator"),
        (["--text", "nowhere.txt"], "--text nowhere.txt is no file"),
        (["--sequences", "nowhere.safetensors"], "--sequences nowhere.safetensors is no file"),
        (["--json", "nowhere/out.json"], "--json nowhere/out.json: the folder nowhere does not exist"),
        (["--device", "abacus"], "device abacus cannot be used"),
        (["--steps", "-1"], "training: steps is -1"),
        (["--memory-gib", "-1"], "--memory-gib is -1.0; it must be at least 0"),
        (["--tokens-at-once", "-1"], "--tokens-at-once is -1; it must be at least 0"),
        (["--threads", "-1"], "--threads is -1; it must be at least 0"),
        (["--sampling-batch", "0"], "--sampling-batch is 0; it must be at least 1"),
        (["--json", "."], "--json . is a folder; name a file in it"),
        (["--gate-learning-rate", "0"], "--gate-learning-rate would have no effect without gates"),
        (["--length", "64"], "--length would have no effect without --text; leave out what has none"),
        (["--max-segments", "0"], "--max-segments would have no effect without --text"),
        (["--baseline-rank", "4"], "--baseline-rank would have no effect without --baselines"),
        (["--min-rank", "5", "--max-rank", "4"], "max_rank is 4; it must be at least min_rank 5"),
        (["--sequence-count", "4"], "calibration: 4 sequences hold out 0, which cannot decide"),
        (["--full-precision", "nowhere"], "nowhere does not exist"),
    ],
)
def test_what_cannot_run_is_explained_and_exits_with_2(
    artefact: Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(artefact.rglob("*"))
    assert main(["calibrate", str(artefact), *_QUICK, *options]) == 2
    captured = capsys.readouterr()
    assert f"spearhead calibrate: {message}" in captured.err.replace("allocation: ", "")
    assert sorted(artefact.rglob("*")) == before


def test_a_text_and_sequences_exclude_each_other(
    artefact: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--calibration-text", str(text), "--sequences", str(text)]
    assert main(["calibrate", str(artefact), *options]) == 2
    assert "exclude each other" in capsys.readouterr().err


def test_windows_of_a_text_are_not_saved_as_what_the_model_wrote(
    artefact: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = artefact.parent / "samples.safetensors"
    options = ["--calibration-text", str(text), "--save-sequences", str(saved)]
    assert main(["calibrate", str(artefact), *options]) == 2
    assert "with --calibration-text it writes nothing" in capsys.readouterr().err
    assert not saved.exists()


def test_options_of_sampling_are_refused_where_nothing_is_sampled(
    artefact: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for option, value in (("--chat-fraction", "0"), ("--sampling-batch", "8")):
        assert main(["calibrate", str(artefact), "--calibration-text", str(text), option, value]) == 2
        assert f"{option} would have no effect with --calibration-text" in capsys.readouterr().err
    assert main(["calibrate", str(artefact), "--sequences", str(text), "--sampling-batch", "8"]) == 2
    assert "--sampling-batch would have no effect with --sequences" in capsys.readouterr().err


def test_a_disk_that_refuses_the_json_file_costs_no_numbers(
    artefact: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["calibrate", str(artefact), *_QUICK, "--steps", "0", "--json", "/dev/full"]) == 2
    captured = capsys.readouterr()
    assert json.loads(captured.out.splitlines()[-1])["metrics"]
    assert "--json /dev/full cannot be written: No space left on device" in captured.err


def test_a_terminated_run_says_how_to_go_on_and_does(artefact: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "spearhead.cli", "calibrate", str(artefact), *_QUICK]
    command += ["--work", str(tmp_path / "work"), "--threads", "1"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        assert process.stderr is not None
        said = ""
        for line in process.stderr:
            said += line
            if "statistics" in line:
                process.send_signal(signal.SIGTERM)
                break
        said += process.stderr.read()
    assert process.returncode == 130
    assert "give the same command again to go on" in said
    assert not (artefact / "spear/ec.safetensors").exists()
    again = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "self-sampling: finished in an earlier run" in again.stderr
    assert json.loads(again.stdout.splitlines()[-1])["compensators"] == str(artefact / "spear/ec.safetensors")


def test_every_option_of_a_recipe_can_be_changed() -> None:
    parser = argparse.ArgumentParser()
    calibrate.add_parser(parser.add_subparsers())
    words = ["calibrate", "w4", "--budget", "4096", "--recipe", "full", "--gate", "off", "--damage", "kl"]
    words += ["--chat-fraction", "0.5", "--sequence-length", "128", "--cost-weight", "0", "--coverage", "2"]
    words += ["--sampling-batch", "64"]
    words += ["--tensor-parallel-size", "2", "--rank-quantum", "4", "--min-rank", "4", "--include-w8"]
    words += ["--gate-learning-rate", "0.1", "--patience", "3", "--skip-first", "2", "--seed", "5"]
    config = config_from(parser.parse_args(words), "cpu")
    assert (config.budget_bytes, config.gate, config.damage, config.include_w8) == (4096, "off", "kl", True)
    assert (config.sampling.chat_fraction, config.sampling.length, config.sampling.seed) == (0.5, 128, 5)
    assert config.sampling.batch_size == 64
    assert (config.cost_weight, config.coverage, config.tensor_parallel_size) == (0.0, 2.0, 2)
    assert (config.rank_quantum, config.min_rank, config.skip_first) == (4, 4, 2)
    assert (config.training.gate_learning_rate, config.training.patience, config.training.seed) == (0.1, 3, 5)
    assert (config.training.steps, config.sampling.sequence_count) == (800, 12_000)
    defaults = config_from(parser.parse_args(["calibrate", "w4"]), "cpu")
    assert defaults.training.steps < 100 and defaults.budget_share == 0.01
