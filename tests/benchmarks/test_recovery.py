import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.recovery.__main__ import _earlier, _save
from benchmarks.recovery.tables import gate_table, grid_table, pooled_differences, section_table


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
    assert all(section["commit"] and section["command"] for section in document["sections"].values())
    budgets, gates = (document["sections"][name]["rows"] for name in ("budgets", "gates"))
    assert [row["budget"] for row in budgets] == [0.005, 0.01, 0.022, 0.04]
    for row in budgets:
        assert row["rungs"]["trained"]["compensator_bytes"] <= row["budget"] * row["w4_bytes"]
        assert row["grid"]
        assert set(row["scores"]["text"]) == {"full precision", "w4", "static", "trained"}
    assert {row["seed"] for row in gates} == {0, 1, 2}
    assert all("text" in row["gate_against_static"] for row in gates)
    assert all(row["chosen"] in row["rungs"] for row in budgets)
    assert "all seeds" in gate_table(gates)
    assert section_table(budgets) in done.stdout
    assert grid_table(budgets) in done.stdout
    assert json.loads((tmp_path / "lab" / "smoke" / "results.json").read_text()) == document


def test_one_base_is_measured_alone(tiny_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    model = tiny_checkpoint("llama", tie_word_embeddings=True)
    text = tmp_path / "text.txt"
    text.write_text("The rain falls on the hills and the fox jumps over it again. " * 60, encoding="utf-8")
    command = [
        *(sys.executable, "-m", "benchmarks.recovery", str(model), "--text", str(text), "--length", "32"),
        *("--folder", str(tmp_path / "lab"), "--size", "smoke", "--device", "cpu", "--base", "gptq"),
    ]
    done = subprocess.run(
        [*command, "--section", "bases"], capture_output=True, text=True, timeout=250, check=False
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout.splitlines()[-1])["sections"]["bases"]["rows"]
    assert [row["base"] for row in rows] == ["gptq"]
    assert done.stderr.count("self-sampling: finished in an earlier run") == 1
    refused = subprocess.run(
        [*command, "--section", "budgets", "--budget", "0.3"],
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert refused.returncode == 2
    assert "no case of --base gptq, --budget 0.3 in section budgets" in refused.stderr


def test_sections_of_earlier_runs_stay_with_what_they_are_from(tmp_path: Path) -> None:
    results, earlier = tmp_path / "results.json", {"bases": {"commit": "abc", "rows": []}}
    assert _earlier(results) == {}
    _save(results, {"sections": earlier})
    assert _earlier(results) == earlier
    assert list(tmp_path.iterdir()) == [results]


def test_the_rung_that_was_kept_is_reported() -> None:
    score = {"perplexity": 9.0, "kl_mean": 0.5}
    rungs = {"static": 0.25, "trained": 0.75}
    row = {
        "name": "case",
        "quantization": "w4",
        "chosen": "static",
        "rungs": {name: {"compensator_bytes": 1, "held_out_kl": kl} for name, kl in rungs.items()},
        "scores": {"text": dict.fromkeys(("full precision", "w4", "static", "trained"), score)},
    }
    row["scores"]["text"]["full precision"] = {"perplexity": 8.0, "kl_mean": 0.0}
    table = section_table([row])
    assert " static " in table and "0.2500" in table and "trained" not in table


def test_a_segment_counts_once_however_many_seeds_share_it() -> None:
    rows = [
        {"gate_against_static": {"text": {"delta_kl_by_segment": [shift - 1.0, shift - 3.0]}}}
        for shift in (0.0, 1.0, 2.0)
    ]
    pooled = pooled_differences(rows)["text"]
    assert pooled.value == -1.0
    assert (pooled.low, pooled.high) == (-2.0, 0.0)
