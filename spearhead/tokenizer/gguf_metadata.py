"""Reads the key-value head of a GGUF file and nothing behind it.

The ``gguf`` library's reader also maps every tensor and takes seconds for a vocabulary; a scheduler and a
drafter that start side by side need only the head. Layout: the GGUF specification, versions 2 and 3.
"""

import struct
from pathlib import Path
from typing import Any, BinaryIO

from spearhead.errors import CheckpointError

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


def read_metadata(path: Path) -> dict[str, Any]:
    """All keys of the file with plain Python values.

    Raises:
        CheckpointError: Not a GGUF file, an unknown version, or it ends too early.
    """
    try:
        with path.open("rb") as file:
            return _read_head(file, path, path.stat().st_size)
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    except (struct.error, UnicodeDecodeError, KeyError, EOFError) as error:
        raise CheckpointError(f"{path} is damaged or cut short; download it again ({error!r})") from error


def _read_head(file: BinaryIO, path: Path, size: int) -> dict[str, Any]:
    if file.read(4) != b"GGUF":
        raise CheckpointError(f"{path} is not a GGUF file: it does not begin with 'GGUF'")
    (version,) = _unpack(file, "I")
    if version not in (2, 3):
        raise CheckpointError(
            f"{path} is GGUF version {version}; versions 2 and 3 (little-endian) can be read"
        )
    _, key_count = _unpack(file, "QQ")
    head = {}
    for _ in range(key_count):
        key = _read_string(file, size)
        (kind,) = _unpack(file, "I")
        head[key] = _read_value(file, kind, size)
    return head


def _read_value(file: BinaryIO, kind: int, size: int) -> Any:
    if kind == _STRING:
        return _read_string(file, size)
    if kind != _ARRAY:
        return _unpack(file, _SCALARS[kind])[0]
    item_kind, count = _unpack(file, "IQ")
    if count > size:
        raise EOFError(f"an array of {count} items in a file of {size} bytes")
    if item_kind in (_STRING, _ARRAY):
        return [_read_value(file, item_kind, size) for _ in range(count)]
    return list(_unpack(file, f"{count}{_SCALARS[item_kind]}"))


def _read_string(file: BinaryIO, size: int) -> str:
    (length,) = _unpack(file, "Q")
    if length > size:
        raise EOFError(f"a string of {length} bytes in a file of {size} bytes")
    return file.read(length).decode("utf-8")


def _unpack(file: BinaryIO, layout: str) -> tuple[Any, ...]:
    return struct.unpack("<" + layout, file.read(struct.calcsize("<" + layout)))
