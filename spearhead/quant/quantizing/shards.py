"""Joins safetensors files into shards of bounded size, byte for byte, without holding tensors in memory."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from spearhead.errors import CheckpointError

_ALIGNMENT = 8
_ITEM_BYTES = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """One tensor of one file."""

    name: str
    dtype: str
    shape: list[int]
    path: Path
    start: int
    size: int


def join_parts(parts: Sequence[Path], folder: Path, shard_bytes: int) -> int:
    """Writes ``model.safetensors``, or numbered shards and their index.

    Args:
        parts: The files, in the order that tensors shall have.
        folder: Where shards go.
        shard_bytes: A shard is closed before it would exceed this; a larger part is a shard of its own.

    Returns:
        Bytes of all tensors.

    Raises:
        CheckpointError: A file is shorter than it says.
    """
    groups = _grouped([_entries(path) for path in parts], shard_bytes)
    names = _shard_names(len(groups))
    for name, group in zip(names, groups, strict=True):
        _write(folder / name, group)
    total = sum(entry.size for group in groups for entry in group)
    if len(groups) > 1:
        weight_map = {entry.name: name for name, group in zip(names, groups, strict=True) for entry in group}
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
    return total


def join_files(parts: Sequence[Path], path: Path) -> None:
    """Writes all tensors of some files into one.

    Raises:
        CheckpointError: A file is shorter than it says.
    """
    _write(path, [entry for part in parts for entry in _entries(part)])


def _entries(path: Path) -> list[_Entry]:
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header: dict[str, Any] = json.loads(file.read(length))
    header.pop("__metadata__", None)
    return [
        _Entry(
            name=name,
            dtype=value["dtype"],
            shape=value["shape"],
            path=path,
            start=8 + length + value["data_offsets"][0],
            size=value["data_offsets"][1] - value["data_offsets"][0],
        )
        for name, value in header.items()
    ]


def _grouped(parts: Sequence[list[_Entry]], shard_bytes: int) -> list[list[_Entry]]:
    groups: list[list[_Entry]] = [[]]
    filled = 0
    for entries in parts:
        size = sum(entry.size for entry in entries)
        if groups[-1] and filled + size > shard_bytes:
            groups.append([])
            filled = 0
        groups[-1].extend(entries)
        filled += size
    return groups


def _shard_names(count: int) -> list[str]:
    if count == 1:
        return ["model.safetensors"]
    return [f"model-{index + 1:05}-of-{count:05}.safetensors" for index in range(count)]


def _write(path: Path, entries: Sequence[_Entry]) -> None:
    # Wide types first keeps every tensor aligned without gaps, which the format forbids.
    ordered = sorted(entries, key=lambda entry: (-_ITEM_BYTES[entry.dtype], entry.name))
    # Readers choose the framework by this entry.
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for entry in ordered:
        end = offset + entry.size
        header[entry.name] = {"dtype": entry.dtype, "shape": entry.shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for entry in ordered:
            _copy(entry, file)


def _copy(entry: _Entry, target: BinaryIO) -> None:
    with entry.path.open("rb") as source:
        source.seek(entry.start)
        left = entry.size
        while left:
            block = source.read(min(left, 1 << 22))
            if not block:
                raise CheckpointError(
                    f"{entry.path} ends {left} bytes before tensor {entry.name} does; it was "
                    "damaged after it was written: run again with --restart"
                )
            target.write(block)
            left -= len(block)
