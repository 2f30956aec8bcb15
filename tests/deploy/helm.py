"""Runs the real helm, versions 3 and 4, and parses what it renders."""

import functools
import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "helm" / "spearhead"
TOOLS = ROOT / ".cache" / "helm"
MAJORS = (3, 4)

Manifest = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """How a run of helm ended.

    Attributes:
        code: Exit code.
        output: Standard output.
        errors: Standard error.
    """

    code: int
    output: str
    errors: str


def require(major: int) -> Path:
    """The helm binary; skips the test where there is none."""
    path = TOOLS / f"helm-{major}"
    if not path.exists():
        pytest.skip(f"helm {major} is not in {TOOLS.relative_to(ROOT)}; `make helm` fetches it")
    return path


def run(
    major: int, *arguments: str, values: Mapping[str, Any] | None = None, home: Path | None = None
) -> Done:
    """Runs helm; ``values`` are given as a values file on standard input."""
    command = [str(require(major)), *arguments]
    if values is not None:
        command += ["--values", "-"]
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(home or "/nonexistent")}
    done = subprocess.run(
        command, input=json.dumps(values or {}), env=environment, capture_output=True, text=True, check=False
    )
    return Done(code=done.returncode, output=done.stdout, errors=done.stderr)


def template(
    values: Mapping[str, Any], *, major: int = 4, release: str = "rel", namespace: str = "serving"
) -> Done:
    """``helm template`` of the chart."""
    return run(major, "template", release, str(CHART), "--namespace", namespace, values=values)


@functools.cache
def _render(values: str, major: int, release: str) -> str:
    done = template(json.loads(values), major=major, release=release)
    assert done.code == 0, done.errors
    return done.output


@functools.cache
def _parse(text: str) -> tuple[Manifest, ...]:
    return tuple(document for document in yaml.load_all(text, yaml.CSafeLoader) if document)


def render(values: Mapping[str, Any], *, major: int = 4, release: str = "rel") -> tuple[Manifest, ...]:
    """The objects of the chart; a run that is repeated is remembered."""
    return _parse(_render(json.dumps(values), major, release))
