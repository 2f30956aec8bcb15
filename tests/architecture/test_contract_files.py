import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUF = ROOT / "node_modules" / ".bin" / "buf"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=False)


def test_generated_code_is_what_the_contract_gives():
    done = run(sys.executable, "tools/generate_protos.py", "--check")
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not BUF.exists(), reason="buf is not installed (npm installs it in `make lint`)")
def test_the_contract_is_linted_formatted_and_breaks_no_released_client():
    done = run(sys.executable, "tools/check_contract.py")
    assert done.returncode == 0, done.stdout + done.stderr
