"""Python and the installed distributions: versions in range, no conflict, nothing that shadows us."""

import platform
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import Requirement

from spearhead.cli.checks.finding import Finding

_PYTHON_RANGE = ((3, 11), (3, 13))
# The extras that a machine with all three services needs.
_EXTRAS = ("", "models")

Versions = Callable[[str], str | None]


def installed_version(name: str) -> str | None:
    """The version of a distribution; ``None`` when it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def check_installation(installed: Versions = installed_version) -> Iterator[Finding]:
    """Python, every declared dependency, and the one distribution that must be absent.

    Args:
        installed: Looks a version up.
    """
    yield check_python(sys.version_info[:2])
    try:
        declared = requires("spearhead") or []
    except PackageNotFoundError:
        yield Finding(
            subject="spearhead",
            ok=False,
            text="it runs from a source folder and is not installed, so versions cannot be compared",
            remedy="pip install -e '.[models]' in that folder",
        )
        declared = []
    yield from check_requirements(declared, installed)
    yield check_shadowing(installed)


def check_python(running: tuple[int, int]) -> Finding:
    """The interpreter's version."""
    low, high = _PYTHON_RANGE
    return Finding(
        subject="python",
        ok=low <= running < high,
        text=platform.python_version(),
        remedy=f"use Python {low[0]}.{low[1]} or {high[0]}.{high[1] - 1}",
    )


def check_requirements(declared: list[str], installed: Versions) -> Iterator[Finding]:
    """Each requirement that applies here, against what is installed.

    Args:
        declared: Requirements as in package metadata.
        installed: Looks a version up.
    """
    for requirement in map(Requirement, declared):
        if requirement.marker and not any(requirement.marker.evaluate({"extra": extra}) for extra in _EXTRAS):
            continue
        found = installed(requirement.name)
        fits = found is not None and requirement.specifier.contains(found, prereleases=True)
        yield Finding(
            subject=requirement.name,
            ok=fits,
            text=f"{found or 'not installed'} (needs {requirement.specifier or 'any version'})",
            remedy=f"pip install '{requirement.name}{requirement.specifier}'",
        )


def check_shadowing(installed: Versions) -> Finding:
    """The distribution named ``kernels``: its import name is ours, and transformers imports from it."""
    found = installed("kernels")
    return Finding(
        subject="distribution 'kernels'",
        ok=found is None,
        text="absent" if found is None else f"{found} is installed and shadows Spearhead's own package",
        remedy="pip uninstall kernels",
    )
