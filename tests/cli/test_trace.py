import json

import pytest

from spearhead.cli.entry import main
from tests.trace.conftest import Story


@pytest.fixture
def folder(tmp_path):
    story = Story()
    now = story.step(0, 1.0, members={"a": ("prefill", 40)}, draft=0.0, prefill=40)
    for number in range(1, 20):
        now = story.step(number, now, members={"a": ("decode", 1)}, draft=40.0 if number == 9 else 2.0)
        story.round("a", number, now)
    story.request("a", 0.0, now)
    folder = tmp_path / "traces"
    folder.mkdir()
    story.write(folder)
    return folder


def test_a_folder_of_traces_becomes_text_and_files(folder, tmp_path, capsys):
    outputs = {name: tmp_path / name for name in ("json", "html", "perfetto")}
    options = [item for name, path in outputs.items() for item in (f"--{name}", str(path))]
    assert main(["trace", "report", str(folder), "--request", "a", *options]) == 0
    assert "late: DRAFT" in capsys.readouterr().out
    assert json.loads(outputs["json"].read_text())["late"][0]["cause"] == "draft"
    assert json.loads(outputs["perfetto"].read_text())["traceEvents"]
    assert outputs["html"].read_text().startswith("<!doctype html>")


def test_an_objective_decides_what_is_late(folder, capsys):
    assert main(["trace", "report", str(folder), "--slo-ms", "1000"]) == 0
    assert "late tokens: 0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["absent.jsonl"], "absent.jsonl cannot be read"),
        (["{folder}", "--request", "b"], "no request 'b'"),
        (["{folder}", "--top", "0"], "--top is 0; it must be at least 1"),
        (["{folder}", "--html", "/absent/x.html"], "/absent/x.html cannot be written"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line_with_exit_code_2(folder, capsys, arguments, message):
    assert main(["trace", "report", *(argument.format(folder=folder) for argument in arguments)]) == 2
    assert message in capsys.readouterr().err
