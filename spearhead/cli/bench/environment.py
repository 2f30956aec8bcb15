"""What a benchmark's numbers depend on: machine, versions, commit, command."""

import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from spearhead import __version__

_DISTRIBUTIONS = ("torch", "transformers", "grpcio", "protobuf", "tokenizers", "numpy", "uvloop")


def environment() -> dict[str, object]:
    """Machine, versions, commit and command, as JSON values."""
    return {
        "machine": {
            "cpu": _cpu_name(),
            "cpu_count": os.cpu_count(),
            "usable_cpu_count": len(os.sched_getaffinity(0)),
            "system": platform.platform(),
        },
        "versions": {
            "spearhead": __version__,
            "python": platform.python_version(),
            **{name: found for name in _DISTRIBUTIONS if (found := _installed(name))},
        },
        "commit": _commit(),
        "command": " ".join(["spearhead", *sys.argv[1:]]),
    }


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _commit() -> str | None:
    root = Path(__file__).resolve().parents[3]
    try:
        done = subprocess.run(
            ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"],
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        return None
    return done.stdout.strip() or None
