"""Downloads a wheel with pip, without installing or running it."""

import subprocess
import sys
from pathlib import Path


def download(requirement: str, folder: Path) -> Path:
    """Downloads one wheel.

    Args:
        requirement: Such as ``name==1.2.3``.
        folder: Where to put it; exists.

    Returns:
        The wheel.

    Raises:
        ConnectionError: pip could not get it; its message is on stderr.
    """
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
    command += ["--no-deps", "--only-binary=:all:", "--dest", str(folder), requirement]
    if subprocess.run(command, check=False).returncode != 0:
        raise ConnectionError(f"{requirement} cannot be downloaded; pip's message is above")
    return next(folder.glob("*.whl"))
