"""Reads a Dockerfile into stages and instructions, as far as ours needs it."""

import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One stage.

    Attributes:
        name: Its name.
        base: What it starts from: an image or the name of an earlier stage.
        steps: Its own instructions, (word, rest of the line) each.
    """

    name: str
    base: str
    steps: tuple[tuple[str, str], ...]


def read_stages(path: Path) -> dict[str, Stage]:
    """The stages of a Dockerfile by name; instructions before the first stage are left out."""
    text = re.sub(r"^\s*#.*\n", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    lines = [line.strip() for line in re.sub(r"\\\n\s*", "", text).splitlines()]
    stages: dict[str, Stage] = {}
    name, base, steps = "", "", list[tuple[str, str]]()
    for line in filter(None, lines):
        word, _, rest = line.partition(" ")
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            steps = []
        else:
            steps.append((word, rest))
        if name:
            stages[name] = Stage(name=name, base=base, steps=tuple(steps))
    return stages


def lineage(stages: dict[str, Stage], name: str) -> list[tuple[str, str]]:
    """The instructions of a stage and of all that it starts from, oldest first."""
    stage = stages.get(name)
    return [*lineage(stages, stage.base), *stage.steps] if stage else []
