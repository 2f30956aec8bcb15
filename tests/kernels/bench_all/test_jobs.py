"""The benchmarks that a run starts exist and take their arguments."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kernels.bench_all.jobs import gates, timings

ROOT = Path(__file__).parents[3]
PEERS, CONFIGS, OUT = Path("peers"), Path("configs"), Path("out")


def test_names_are_distinct_and_claims_come_first():
    jobs = timings(PEERS, CONFIGS, OUT)
    names = [job.name for job in (*jobs, *gates(CONFIGS))]
    assert len(set(names)) == len(names)
    assert names[:4] == ["products-8b", "layer-8b", "attention", "sample"]


def test_peers_are_asked_for_only_where_there_are_any():
    assert any("--peers" in job.arguments for job in timings(PEERS, CONFIGS, OUT))
    assert not any("--peers" in job.arguments for job in timings(None, CONFIGS, OUT))


@pytest.mark.parametrize("module", ["kernels.w4a16.bench", "kernels.compensator.bench"])
def test_arguments_are_ones_that_the_benchmark_knows(module):
    pytest.importorskip("triton")
    parser = importlib.import_module(module)._parser()
    jobs = [job for job in (*timings(PEERS, CONFIGS, OUT), *gates(CONFIGS)) if job.module == module]
    assert jobs
    for job in jobs:
        parser.parse_args(job.arguments)


def test_every_gate_checks_and_times_nothing():
    assert all("--gate" in job.arguments for job in gates(CONFIGS))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_the_command_says_where_to_run_it(tmp_path):
    command = [sys.executable, "-m", "kernels.bench_all", "--out", str(tmp_path / "out")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "finds no CUDA device; run this on the GPU to be measured" in done.stderr
    assert not (tmp_path / "out").exists()
