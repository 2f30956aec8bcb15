"""Limits of control groups as both versions write them."""

from pathlib import Path

import pytest
import torch

from spearhead.quant.cgroup import MemoryLimit, memory_limits
from spearhead.quant.device import free_memory_bytes, machine_bytes

GIB = 1 << 30


def group(folder: Path, **files: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(f"{content}\n")


def member(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "cgroup"
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def test_version_2_limits_of_every_level_count(tmp_path):
    root = tmp_path / "fs"
    group(root)  # the outermost group has no such files
    group(root / "pod", memory__max=4 * GIB, memory__current=3 * GIB)
    group(root / "pod/box", memory__max=8 * GIB, memory__current=2 * GIB, memory__stat=f"inactive_file {GIB}")
    group(root / "pod/box/job", memory__max="max", memory__current=GIB)
    found = memory_limits(member(tmp_path, "0::/pod/box/job"), root)
    assert found == [
        MemoryLimit(limit_bytes=8 * GIB, free_bytes=7 * GIB),
        MemoryLimit(limit_bytes=4 * GIB, free_bytes=GIB),
    ]


def test_version_1_limits_are_those_of_the_memory_controller(tmp_path):
    root = tmp_path / "fs"
    stat = f"inactive_file 1\ntotal_inactive_file {GIB}"
    limited = {"memory__limit_in_bytes": 4 * GIB, "memory__usage_in_bytes": 2 * GIB, "memory__stat": stat}
    group(root / "memory/jobs/one", **limited)
    group(root / "memory", memory__limit_in_bytes=(1 << 63) - 4096, memory__usage_in_bytes=GIB)
    lines = ("5:cpu,cpuacct:/elsewhere", "4:memory:/jobs/one", "0::/")
    assert memory_limits(member(tmp_path, *lines), root) == [
        MemoryLimit(limit_bytes=4 * GIB, free_bytes=3 * GIB)
    ]


@pytest.mark.parametrize(
    ("line", "folder", "limit", "usage"),
    [
        ("0::/host/only/path", "", "memory__max", "memory__current"),
        ("3:memory:/docker/1f", "memory", "memory__limit_in_bytes", "memory__usage_in_bytes"),
    ],
)
def test_in_a_container_the_mount_itself_is_the_group(tmp_path, line, folder, limit, usage):
    root = tmp_path / "fs"
    group(root / folder, **{limit: 2 * GIB, usage: GIB})
    assert [one.free_bytes for one in memory_limits(member(tmp_path, line), root)] == [GIB]


def test_a_group_above_its_limit_has_nothing_free(tmp_path):
    group(tmp_path / "fs", memory__max=GIB, memory__current=2 * GIB)
    assert memory_limits(member(tmp_path, "0::/"), tmp_path / "fs")[0].free_bytes == 0


def test_without_control_groups_there_are_no_limits(tmp_path):
    assert memory_limits(tmp_path / "missing", tmp_path) == []


def test_the_memory_of_this_machine_is_within_every_limit_of_this_process():
    cpu = torch.device("cpu")
    assert 0 < free_memory_bytes(cpu) <= machine_bytes(cpu)
    assert all(machine_bytes(cpu) <= limit.limit_bytes for limit in memory_limits())
