"""Runs Triton kernels where the tests run: compiled on a GPU, else in Triton's interpreter.

Triton decides when a kernel is defined, so the variable is set before any test module is imported.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(scope="session")
def device() -> torch.device:
    """Where kernels run: the GPU if there is one, else the processor through the interpreter."""
    return (
        torch.device("cuda", torch.cuda.current_device())
        if torch.cuda.is_available()
        else torch.device("cpu")
    )


@pytest.fixture(scope="session")
def compile_for_hopper() -> Callable[[Path, Sequence[object]], list[dict[str, Any]]]:
    """Runs a program that compiles cases for sm_90 and prints facts of each as JSON; else skips.

    In a process of its own: here, kernels may be defined for the interpreter.
    """

    def compiled(program: Path, cases: Sequence[object]) -> list[dict[str, Any]]:
        done = subprocess.run(
            [sys.executable, str(program), json.dumps(cases)],
            env={name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"},
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        outcomes = json.loads(done.stdout.splitlines()[-1])
        if outcomes == "no backend":
            pytest.skip("this Triton has no compiler for NVIDIA GPUs")
        assert len(outcomes) == len(cases)
        return list(outcomes)

    return compiled
