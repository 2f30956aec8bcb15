"""The audit never passes in silence: a stand-in for pip-audit answers, finds, skips, or cannot be reached."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STAND_IN = """
import json, re, sys
output = sys.argv[sys.argv.index("--output") + 1]
lock = sys.argv[sys.argv.index("--requirement") + 1]
names = re.findall(r"^([\\w.-]+)==([^\\s\\\\]+)", open(lock).read(), re.MULTILINE)
packages = [{"name": name, "version": version, "vulns": []} for name, version in names]
%s
json.dump({"dependencies": packages, "fixes": []}, open(output, "w"))
"""
FINDS = 'packages[0]["vulns"] = [{"id": "PYSEC-2026-1"}]'
SKIPS = 'packages[0] = {"name": names[0][0], "skip_reason": "not in the database"}'
FORGETS = "del packages[0]"
UNREACHABLE = 'sys.exit("ConnectionError: no route to the advisory service")'


def audit(folder, behaviour, *options):
    script = folder / "stand_in.py"
    script.write_text(STAND_IN % behaviour, encoding="utf-8")
    tool = str(ROOT / "tools" / "audit_dependencies.py")
    return subprocess.run(
        [sys.executable, tool, "--pip-audit", f"{sys.executable} {script}", *options],
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_packages_that_are_all_known_to_be_well_pass(tmp_path):
    done = audit(tmp_path, "")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("options", [(), ("--skip-when-unreachable",)])
def test_a_vulnerable_package_fails_by_name_whatever_may_be_skipped(tmp_path, options):
    done = audit(tmp_path, FINDS, *options)
    assert done.returncode == 1
    assert "PYSEC-2026-1" in done.stderr


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [(UNREACHABLE, "no route"), (SKIPS, "not in the database"), (FORGETS, "1 of ")],
)
def test_what_was_not_looked_up_fails_with_the_reason(tmp_path, behaviour, reason):
    done = audit(tmp_path, behaviour)
    assert done.returncode == 3
    assert "NOT AUDITED" in done.stderr
    assert reason in done.stderr


def test_skipping_is_said_aloud(tmp_path):
    done = audit(tmp_path, UNREACHABLE, "--skip-when-unreachable")
    assert done.returncode == 0
    assert done.stderr.count("SKIPPED") == 3


def test_a_missing_pip_audit_is_not_taken_for_a_pass(tmp_path):
    tool = str(ROOT / "tools" / "audit_dependencies.py")
    done = subprocess.run(
        [sys.executable, tool, "--pip-audit", str(tmp_path / "nothing")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 3
    assert "cannot be started" in done.stderr
