"""Lints the contract with buf and compares it with the released one, so that no client breaks.

Without buf (no npm on this machine) the check is skipped with a message, except in CI, where it fails.
"""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUF = ROOT / "node_modules" / ".bin" / "buf"
RELEASED = ROOT / "protos" / "released" / "v1.binpb"

CHECKS = {
    "lint": ["lint", "protos"],
    "format": ["format", "--diff", "--exit-code", "protos"],
    "breaking": ["breaking", "protos", "--against", str(RELEASED)],
}


def failed_checks() -> list[str]:
    """Names of the checks that buf reports; its own messages go to this process's output."""
    return [
        name
        for name, arguments in CHECKS.items()
        if subprocess.run([str(BUF), *arguments], cwd=ROOT, check=False).returncode != 0
    ]


def main() -> int:
    """Runs every check; 1 when one fails."""
    if not BUF.exists():
        print("contract check skipped: buf is missing (npm installs it, see `make lint`)", file=sys.stderr)
        return 1 if os.environ.get("CI") else 0
    failed = failed_checks()
    if failed:
        print(f"contract check failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
