"""Asks the advisory database about every locked dependency of the images.

Usage: audit_dependencies.py [--skip-when-unreachable] [--pip-audit COMMAND]. Exit codes: 0 = every package
was looked up and none is known to be vulnerable; 1 = some are; 3 = some were not looked up, so nothing is
known of them: pip-audit itself calls that a success. With --skip-when-unreachable they are printed as SKIPPED
with the reason, and the exit code is 0.
"""

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FOUND, UNKNOWN = 1, 3


def ask(pip_audit: Sequence[str], lock: Path) -> dict[str, Any] | str:
    """What is known about the packages of a lock file; text = why nothing is."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [*pip_audit, "--requirement", str(lock), "--no-deps", "--disable-pip", "--format", "json"]
        try:
            done = subprocess.run(
                [*command, "--output", str(report)], capture_output=True, text=True, check=False
            )
        except OSError as error:
            return f"{pip_audit[0]} cannot be started: {error.strerror}; run `make audit`"
        if not report.exists() or not report.read_text("utf-8").strip():
            lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode} without a word"]
            return lines[-1]
        document: dict[str, Any] = json.loads(report.read_text("utf-8"))
        return document


def verdict(document: dict[str, Any], wanted: int) -> tuple[list[str], str]:
    """The vulnerable packages, and what was not looked up; both empty = all is well.

    Args:
        document: What pip-audit reported.
        wanted: How many packages it was asked about.
    """
    packages = document.get("dependencies", [])
    vulnerable = [
        f"{package['name']} {package['version']}: {', '.join(v['id'] for v in package['vulns'])}"
        for package in packages
        if package.get("vulns")
    ]
    skipped = [package["skip_reason"] for package in packages if "skip_reason" in package]
    missing = len(skipped) + max(0, wanted - len(packages))
    if not missing:
        return vulnerable, ""
    reason = skipped[0] if skipped else "pip-audit does not mention them"
    return vulnerable, f"{missing} of {wanted} packages were not looked up, the first since: {reason}"


def package_count(lock: Path) -> int:
    """Entries of a lock file."""
    return sum(
        "==" in line and not line.startswith((" ", "#")) for line in lock.read_text("utf-8").splitlines()
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Audits every lock file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--skip-when-unreachable", action="store_true")
    parser.add_argument("--pip-audit", default=f"{sys.executable} -m pip_audit")
    options = parser.parse_args(arguments)
    vulnerable, unknown = [], []
    for lock in sorted((ROOT / "deploy" / "requirements").glob("*.txt")):
        document = ask(shlex.split(options.pip_audit), lock)
        if isinstance(document, str):
            unknown.append(f"{lock.name}: {document}")
            continue
        bad, missing = verdict(document, package_count(lock))
        vulnerable += bad
        unknown += [f"{lock.name}: {missing}"] if missing else []
    for line in vulnerable:
        print(f"VULNERABLE {line}", file=sys.stderr)
    for line in unknown:
        print(f"{'SKIPPED' if options.skip_when_unreachable else 'NOT AUDITED'} {line}", file=sys.stderr)
    if vulnerable:
        return FOUND
    return UNKNOWN if unknown and not options.skip_when_unreachable else 0


if __name__ == "__main__":
    sys.exit(main())
