"""Limits that containers and service managers set on this process's memory: Linux control groups, v1 and v2.

Every group from this process's own up to the outermost one that is visible may have a limit. In a container
the group's path may be that of the host while only its own folder is mounted: then the mount's root is it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_MEMBERSHIP = Path("/proc/self/cgroup")
_MOUNT = Path("/sys/fs/cgroup")
_NO_LIMIT = 1 << 60
"""Version 1 writes the largest number of pages where there is no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLimit:
    """What one group allows.

    Attributes:
        limit_bytes: For all its processes.
        free_bytes: What is left of it, with the file pages that the system would drop first.
    """

    limit_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Version:
    """Names of one version's files, and the entry of ``memory.stat`` that counts pages easily dropped."""

    limit: str
    usage: str
    droppable: str


_V1 = _Version(limit="memory.limit_in_bytes", usage="memory.usage_in_bytes", droppable="total_inactive_file")
_V2 = _Version(limit="memory.max", usage="memory.current", droppable="inactive_file")


def memory_limits(membership: Path = _MEMBERSHIP, mount: Path = _MOUNT) -> list[MemoryLimit]:
    """The limits of all groups of this process; none outside Linux.

    Args:
        membership: Lines of ``number:controllers:path``.
        mount: Where groups are folders: of version 2 itself, or with version 1 below ``memory``.
    """
    if not membership.is_file():
        return []
    found: list[MemoryLimit] = []
    for line in membership.read_text(encoding="utf-8").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            found += _limits(mount, path, _V2)
        elif "memory" in controllers.split(","):
            found += _limits(mount / "memory", path, _V1)
    return found


def _limits(root: Path, path: str, version: _Version) -> Iterator[MemoryLimit]:
    inside = PurePosixPath(path.lstrip("/"))
    for part in (inside, *inside.parents):
        group = root / part
        limit = _number(group / version.limit)
        used = _number(group / version.usage)
        if limit is not None and used is not None and limit < _NO_LIMIT:
            free = limit - used + _droppable(group, version)
            yield MemoryLimit(limit_bytes=limit, free_bytes=min(limit, max(0, free)))


def _number(file: Path) -> int | None:
    """``None`` = the file is not there, or says ``max``."""
    if not file.is_file():
        return None
    text = file.read_text(encoding="ascii").strip()
    return None if text == "max" else int(text)


def _droppable(group: Path, version: _Version) -> int:
    file = group / "memory.stat"
    if not file.is_file():
        return 0
    entries = (line.split() for line in file.read_text(encoding="ascii").splitlines())
    return next((int(value) for name, value in entries if name == version.droppable), 0)
