import json
from collections.abc import Callable
from pathlib import Path

import pytest

from spearhead.cli import main

TEXT = "The rain falls on the hills while a fox verifies drafts. " * 60


@pytest.fixture
def folder(tiny_checkpoint: Callable[..., Path]) -> Path:
    return tiny_checkpoint("llama")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "rain.txt"
    path.write_text(TEXT)
    return path


SMALL = ["--length", "48", "--max-segments", "4", "--device", "cpu", "--draws", "50"]
ROUNDS = ["--prompts", "2", "--prompt-tokens", "8", "--output-tokens", "12"]


def test_the_last_line_is_the_evaluation_as_json(
    folder: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    drafters = ["--drafter", "self", "--drafter", "ngram", "--drafter", str(folder)]
    arguments = [
        "evaluate",
        str(folder),
        "--quantization",
        "group32",
        "--text",
        str(text),
        "--json",
        str(out),
    ]
    assert main([*arguments, *SMALL, *ROUNDS, *drafters]) == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out.splitlines()[-1])
    assert json.loads(out.read_text()) == document
    assert [score["variant"] for score in document["texts"][0]["scores"]] == ["fp16", "w4"]
    assert [column["name"] for column in document["columns"]] == ["FP16", "FP16+spec", "W4", "W4+spec"]
    pairs = [(score["drafter"], score["variant"]) for score in document["acceptance"]["scores"]]
    names = ["self", "ngram", folder.name]
    assert pairs == [(name, variant) for name in names for variant in ("fp16", "w4")]
    assert document["acceptance"]["scores"][0]["draft_acceptance"] == 1
    assert {"machine", "versions", "commit", "command", "full_precision_revision"} <= document.keys()
    assert "w4 symmetric, group 32, absmax/7.5" in captured.out
    assert "left" in captured.err


def test_a_disk_that_refuses_the_file_costs_no_numbers(
    folder: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        "evaluate",
        str(folder),
        "--text",
        str(text),
        *SMALL,
        "--prompts",
        "0",
        "--json",
        "/dev/full",
    ]
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert json.loads(captured.out.splitlines()[-1])["texts"]
    assert "--json /dev/full cannot be written: No space left on device" in captured.err


def test_self_samples_are_a_text_and_are_scored_without_the_first_token_of_a_document(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["evaluate", str(folder), "--self-samples", "3", "--self-sample-length", "24"]
    assert main([*arguments, "--device", "cpu", "--draws", "50", "--prompts", "0"]) == 0
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    (scores,) = document["texts"]
    assert scores["bos"] == "as sampled" and scores["segment_count"] == 3
    assert 0 < scores["scored_token_count"] <= 3 * 23
    assert document["acceptance"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "nothing to evaluate on; give --text"),
        (["--text", "gone.txt"], "gone.txt cannot be read: No such file"),
        (["--text", "rain.txt", "--length", "9999"], "tokens, less than one segment of 9999"),
        (["--text", "rain.txt", "--prompt-tokens", "49"], "more than the 48 tokens of a segment"),
        (["--text", "rain.txt", "--draft-tokens", "0"], "--draft-tokens is 0; it must be at least 1"),
        (["--text", "rain.txt", "--temperature", "-1"], "--temperature is -1.0; it must be at least 0"),
        (["--text", "rain.txt", "--device", "meta"], "device meta is not supported"),
        (["--text", "rain.txt", "--device", "nonsense"], "device nonsense cannot be used"),
        (["--text", "rain.txt", "--json", "gone/out.json"], "the folder gone does not exist"),
        (["--text", "rain.txt", "--json", "."], "--json . is a folder; name a file in it"),
        (["--text", "rain.txt", "--temperature", "nan"], "--temperature is nan; it must be at least 0"),
        (["--text", "rain.txt", "--memory-gib", "-1"], "--memory-gib is -1.0; it must be at least 0"),
        (["--text", "rain.txt", "--self-sample-seed", "3"], "would have no effect without --self-samples"),
        (["--self-samples", "2"], "--length, --max-segments would have no effect without --text"),
        (
            ["--text", "rain.txt", "--prompts", "0", "--drafter", "self"],
            "--drafter would have no effect",
        ),
        (
            ["--text", "rain.txt", "--prompts", "0", "--draft-tokens", "5", "--temperature", "0"],
            "--draft-tokens, --temperature would have no effect with --prompts 0",
        ),
        (["--text", "rain.txt", "--quantization", "w3"], "quantization 'w3' is not understood"),
    ],
)
def test_what_cannot_be_evaluated_is_refused_with_exit_code_2(
    folder: Path,
    text: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(text.parent)
    assert main(["evaluate", str(folder), *SMALL, *arguments]) == 2
    assert message in capsys.readouterr().err


def test_compensators_are_not_judged_on_samples_of_the_seed_that_they_were_fitted_with(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    w4 = tmp_path / "w4"
    assert main(["quantize", str(folder), str(w4), "--scheme", "channel"]) == 0
    quick = ["--sequence-count", "96", "--sequence-length", "24", "--moments-sequences", "8", "--steps", "0"]
    quick += ["--damage-tokens", "96", "--budget", "8%", "--max-rank", "4", "--device", "cpu"]
    assert main(["calibrate", str(w4), *quick, "--seed", "7"]) == 0
    samples = ["--self-samples", "2", "--self-sample-length", "24", "--prompts", "0", "--device", "cpu"]
    assert main(["evaluate", str(w4), *samples, "--draws", "50"]) == 0
    capsys.readouterr()
    assert main(["evaluate", str(w4), *samples, "--self-sample-seed", "7"]) == 2
    assert "--self-sample-seed 7 is the seed of the text that the compensators of" in capsys.readouterr().err
