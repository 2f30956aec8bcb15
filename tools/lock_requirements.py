"""Locks what the images install: versions and hashes, from pyproject.toml.

Usage: lock_requirements.py FOLDER. Needs uv (``pip install uv``) and the package registry. Writes three
files: scheduler.txt, models.txt (what the model services need beside torch) and torch.txt (torch and its CUDA
libraries).
"""

import argparse
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHON_VERSION = "3.12"
PLATFORM = "x86_64-manylinux_2_28"
_TORCH_TREE = re.compile(r"(torch|triton|nvidia-.*|cuda-.*)==")
_HEAD = "# Locked by tools/lock_requirements.py for Python {python} on {platform}; do not edit.\n"


def compile_lock(extras: Iterable[str]) -> dict[str, str]:
    """Resolves the project with extras.

    Returns:
        From ``name==version`` to the whole entry, hashes included.

    Raises:
        SystemExit: uv is missing or cannot resolve.
    """
    command = [sys.executable, "-m", "uv", "pip", "compile", "pyproject.toml", "--quiet", "--generate-hashes"]
    command += ["--no-header", "--no-annotate", "--python-version", PYTHON_VERSION]
    command += ["--python-platform", PLATFORM, *(f"--extra={extra}" for extra in extras)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit("uv could not lock the requirements; its message is above (pip install uv)")
    entries = re.split(r"\n(?=\S)", done.stdout.strip())
    return {entry.split()[0]: entry for entry in entries}


def split(scheduler: Mapping[str, str], everything: Mapping[str, str]) -> dict[str, list[str]]:
    """Which entry goes into which file.

    Raises:
        SystemExit: The two resolutions disagree on a version.
    """
    if different := scheduler.keys() - everything.keys():
        raise SystemExit(f"the images would disagree on {', '.join(sorted(different))}; bound them")
    added = [name for name in everything if name not in scheduler]
    torch = [name for name in added if _TORCH_TREE.match(name)]
    return {
        "scheduler.txt": [scheduler[name] for name in scheduler],
        "models.txt": [everything[name] for name in added if name not in torch],
        "torch.txt": [everything[name] for name in torch],
    }


def main() -> int:
    """Writes the files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    files = split(compile_lock(["fast"]), compile_lock(["fast", "models"]))
    for name, entries in files.items():
        head = _HEAD.format(python=PYTHON_VERSION, platform=PLATFORM)
        (folder / name).write_text(head + "\n".join(entries) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
