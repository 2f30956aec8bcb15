"""Measures every recovery claim on one model: prints tables and, as the last line, one JSON document.

A run that was killed goes on from its folder.
"""

import argparse
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks.recovery.cases import SECTIONS, SIZES, cases
from benchmarks.recovery.lab import Lab
from benchmarks.recovery.tables import gate_table, grid_table, ratio_table, section_table
from spearhead.cli.bench.environment import environment
from spearhead.cli.progress import ProgressBar
from spearhead.quant.calibration import CalibrationSettings
from spearhead.quant.calibration.report import Surroundings

_FURTHER = {"budgets": grid_table, "gates": gate_table, "baselines": ratio_table}


class _Bars:
    def __init__(self) -> None:
        self._stage, self._bar = "", ProgressBar("")

    def show(self, stage: str, done: int, total: int) -> None:
        if stage != self._stage:
            self._stage, self._bar = stage, ProgressBar(stage)
        self._bar.move_to(done, total)


def main() -> None:
    """Runs sections one after the other; each is saved as it ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="full-precision checkpoint: folder, .gguf file or hub id")
    parser.add_argument("--text", type=Path, action="append", required=True, help="held-out text; repeatable")
    parser.add_argument("--folder", type=Path, required=True, help="artefacts, stages, reports, results")
    parser.add_argument("--section", action="append", choices=SECTIONS, help="default: all; repeatable")
    parser.add_argument("--size", choices=SIZES, default="full" if torch.cuda.is_available() else "reduced")
    parser.add_argument("--length", type=int, default=2048, help="tokens of a segment")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    facts: dict[str, Any] = {
        **environment(),
        "command": shlex.join(["python", "-m", "benchmarks.recovery", *sys.argv[1:]]),
    }
    device = arguments.device
    name = torch.cuda.get_device_name(device) if device.startswith("cuda") else facts["machine"]["cpu"]
    lab = Lab(
        model=arguments.model,
        texts=tuple(arguments.text),
        length=arguments.length,
        size=SIZES[arguments.size],
        settings=CalibrationSettings(device=device),
        folder=arguments.folder,
        surroundings=Surroundings(
            versions=facts["versions"], commands=(str(facts["command"]),), device=str(name)
        ),
        progress=_Bars().show,
        tell=lambda sentence: print(sentence, file=sys.stderr, flush=True),
    )
    document: dict[str, Any] = {"benchmark": "recovery", "device": name, "size": arguments.size, **facts}
    document["sections"] = {}
    for section in arguments.section or SECTIONS:
        _measure(lab, section, document)
    print(json.dumps(document))


def _measure(lab: Lab, section: str, document: dict[str, Any]) -> None:
    rows = document["sections"].setdefault(section, [])
    for case in cases(section, lab.size):
        rows.append(lab.row(case))
        # What was measured outlives a run that is cut off.
        (lab.folder / "results.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(f"\n{section}\n{section_table(rows)}")
    if section in _FURTHER:
        print(f"\n{_FURTHER[section](rows)}")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
