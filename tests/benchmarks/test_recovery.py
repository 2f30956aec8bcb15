import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.recovery.tables import grid_table, section_table


def test_the_command_measures_sections_and_ends_with_one_json_document(
    tiny_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    model = tiny_checkpoint("llama", tie_word_embeddings=True)
    text = tmp_path / "text.txt"
    text.write_text("The rain falls on the hills and the fox jumps over it again. " * 60, encoding="utf-8")
    command = [
        *(sys.executable, "-m", "benchmarks.recovery", str(model), "--text", str(text), "--length", "32"),
        *("--folder", str(tmp_path / "lab"), "--size", "smoke", "--device", "cpu"),
        *("--section", "budgets", "--section", "gates"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout.splitlines()[-1])
    budgets, gates = document["sections"]["budgets"], document["sections"]["gates"]
    assert [row["budget"] for row in budgets] == [0.005, 0.01, 0.022, 0.04]
    for row in budgets:
        assert row["rungs"]["trained"]["compensator_bytes"] <= row["budget"] * row["w4_bytes"]
        assert row["grid"]
        assert set(row["scores"]["text"]) == {"full precision", "w4", "static", "trained"}
    assert {row["seed"] for row in gates} == {0, 1, 2}
    assert all("text" in row["gate_against_static"] for row in gates)
    assert section_table(budgets) in done.stdout
    assert grid_table(budgets) in done.stdout
    assert json.loads((tmp_path / "lab" / "results.json").read_text()) == document
