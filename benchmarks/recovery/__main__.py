"""Measures every recovery claim on one model: prints tables and, as the last line, one JSON document.

A run that was killed goes on from its folder, of which each size has its own and each commit its stages.
Sections of earlier runs stay in its results, each with the commit, machine and command that it is from.
"""

import argparse
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.recovery.cases import BASES, SECTIONS, SIZES, Case, cases
from benchmarks.recovery.lab import Lab
from benchmarks.recovery.tables import gate_table, grid_table, ratio_table, section_table
from spearhead.cli.bench.environment import environment
from spearhead.cli.progress import StageBars
from spearhead.model.checkpoint.durable import put_in_place
from spearhead.quant.calibration import CalibrationSettings
from spearhead.quant.calibration.report import Surroundings
from spearhead.quant.device import device_name

_RESULTS = "results.json"
_FURTHER = {"budgets": grid_table, "gates": gate_table, "baselines": ratio_table}


def main() -> None:
    """Runs sections one after the other; each is saved as it ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="full-precision checkpoint: folder, .gguf file or hub id")
    parser.add_argument("--text", type=Path, action="append", required=True, help="held-out text; repeatable")
    parser.add_argument("--folder", type=Path, required=True, help="artefacts, stages, reports, results")
    parser.add_argument("--section", action="append", choices=SECTIONS, help="default: all; repeatable")
    parser.add_argument("--base", action="append", choices=BASES, help="default: all; repeatable")
    parser.add_argument(
        "--budget", action="append", type=float, help="share of bytes; default: all; repeatable"
    )
    parser.add_argument("--size", choices=SIZES, default="full" if torch.cuda.is_available() else "reduced")
    parser.add_argument("--length", type=int, default=2048, help="tokens of a segment")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    bases, budgets = arguments.base, arguments.budget
    plan = {
        section: [
            case
            for case in cases(section, SIZES[arguments.size])
            if (not bases or case.base in bases) and (not budgets or case.budget in budgets)
        ]
        for section in arguments.section or SECTIONS
    }
    empty = [section for section, chosen in plan.items() if not chosen]
    if empty:
        asked = [f"--base {base}" for base in bases or ()]
        asked += [f"--budget {share:g}" for share in budgets or ()]
        parser.error(f"no case of {', '.join(asked)} in section {', '.join(empty)}; leave either out")
    facts: dict[str, Any] = {
        **environment(),
        "command": shlex.join(["python", "-m", "benchmarks.recovery", *sys.argv[1:]]),
    }
    device = arguments.device
    name = device_name(torch.device(device))
    lab = Lab(
        model=arguments.model,
        texts=tuple(arguments.text),
        length=arguments.length,
        size=SIZES[arguments.size],
        settings=CalibrationSettings(device=device),
        folder=arguments.folder / arguments.size,
        commit=str(facts["commit"] or "unknown"),
        surroundings=Surroundings(versions=facts["versions"], commands=(str(facts["command"]),), device=name),
        progress=StageBars().show,
        tell=lambda sentence: print(sentence, file=sys.stderr, flush=True),
    )
    document = {"benchmark": "recovery", "size": arguments.size, "sections": _earlier(lab.folder / _RESULTS)}
    for section, chosen in plan.items():
        _measure(lab, section, chosen, {"device": name, **facts}, document)
    print(json.dumps(document))


def _measure(
    lab: Lab, section: str, chosen: Sequence[Case], facts: Mapping[str, Any], document: dict[str, Any]
) -> None:
    rows: list[dict[str, Any]] = []
    document["sections"][section] = {**facts, "rows": rows}
    for case in chosen:
        rows.append(lab.row(case))
        _save(lab.folder / _RESULTS, document)  # what was measured outlives a run that is cut off
    print(f"\n{section}\n{section_table(rows)}")
    if section in _FURTHER:
        print(f"\n{_FURTHER[section](rows)}")
    sys.stdout.flush()


def _earlier(path: Path) -> dict[str, Any]:
    """Sections of earlier runs, each with its own commit, machine and command."""
    if not path.exists():
        return {}
    sections: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["sections"]
    return sections


def _save(path: Path, document: Mapping[str, Any]) -> None:
    part = path.with_name(f"{path.name}.part")
    part.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    put_in_place(part, path)


if __name__ == "__main__":
    main()
