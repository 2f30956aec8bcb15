"""Every benchmark in one run: ``python -m kernels.bench_all --out FOLDER --minutes 9 --peers FOLDER``.

First all kernels are compiled and checked, many processes at once; then each benchmark has the GPU to itself,
the most important ones first, until the time is over. What a benchmark prints is in ``NAME.txt``, its last
line in ``NAME.json``; ``summary.txt`` says which limits are kept. The last line is JSON.
"""

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from kernels.bench_all.jobs import gates, timings
from kernels.bench_all.report import claims, lines
from kernels.bench_all.runner import Outcome, Runner
from kernels.tuning.timing import command, facts
from kernels.w4a16.peers import unpacked
from kernels.w4a16.table import CONFIGS

_GATE_SHARE = 0.3  # of all time, at most


def main() -> None:
    """Runs everything; exits with 1 where a gate or a benchmark failed, with 2 where there is no GPU."""
    parser = argparse.ArgumentParser(prog="python -m kernels.bench_all", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for tables and JSON")
    parser.add_argument("--minutes", type=float, default=9.0, help="for everything together")
    parser.add_argument("--peers", type=Path, help="folder with vllm_c.so (or .xz) and scalar_type.py")
    parser.add_argument("--configs", type=Path, default=CONFIGS, help="folder of the plans")
    parser.add_argument("--only", help="names of benchmarks, in this order")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error(f"torch {torch.__version__} finds no CUDA device; run this on the GPU to be measured")
    started, seconds = time.monotonic(), 60 * options.minutes
    options.out.mkdir(parents=True, exist_ok=True)
    peers = None if options.peers is None else unpacked(options.peers)
    jobs = timings(peers, options.configs, options.out)
    if options.only is not None:
        known = {job.name: job for job in jobs}
        unknown = [name for name in options.only.split(",") if name not in known]
        if unknown:
            parser.error(f"no benchmark {unknown[0]!r}; known: {', '.join(known)}")
        jobs = [known[name] for name in options.only.split(",")]
    runner = Runner(options.out, started + seconds)
    print(f"checking and compiling: {len(gates(options.configs))} processes at once", flush=True)
    gated = runner.together(gates(options.configs), started + _GATE_SHARE * seconds)
    for outcome in gated:
        _report(outcome)
    timed = runner.one_by_one(jobs, _report)
    raise SystemExit(_conclude(options.out, gated, timed))


def _conclude(out: Path, gated: Sequence[Outcome], timed: Sequence[Outcome]) -> int:
    """Writes and prints the summary; the exit status."""
    documents = [outcome.document for outcome in timed if outcome.document is not None]
    table = "\n".join(lines(documents))
    (out / "summary.txt").write_text(table + "\n", encoding="utf-8")
    print(table)
    states = {outcome.name: outcome.state for outcome in (*gated, *timed)}
    found = [{**asdict(claim), "kept": claim.kept} for claim in claims(documents)]
    print(json.dumps({"benchmark": "kernels.bench_all", "command": command(), **facts(), "jobs": states,
                      "claims": found}), flush=True)  # fmt: skip
    return int("failed" in states.values())


def _report(outcome: Outcome) -> None:
    print(f"{outcome.name:28}{outcome.state:8}{outcome.seconds:7.0f} s", flush=True)


if __name__ == "__main__":
    main()
