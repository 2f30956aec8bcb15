"""The safetensors files of one folder, read as one set of tensors."""

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from contextlib import ExitStack
from math import prod
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from spearhead.errors import CheckpointError

_INDEX = "model.safetensors.index.json"
FLOATS = {"F16": "float16", "BF16": "bfloat16", "F32": "float32"}
"""Safetensors' names of the floats that are read to torch's."""

_ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4}


class TensorFiles:
    """Opens every file of a checkpoint and knows which tensor is where.

    Args:
        paths: The files; each opens now.

    Raises:
        CheckpointError: A file is missing, truncated, or repeats a tensor of another.
    """

    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.dtypes: dict[str, str] = {}
        self._handles: dict[str, Any] = {}
        self._stack = ExitStack()
        try:
            for path in paths:
                self._add(path)
        except BaseException:
            self.close()
            raise

    def _add(self, path: Path) -> None:
        try:
            handle = self._stack.enter_context(safe_open(path, framework="pt"))
            for name in handle.keys():  # noqa: SIM118 (no mapping)
                if name in self._handles:
                    raise CheckpointError(f"{path}: tensor {name} is also in another file of this folder")
                piece = handle.get_slice(name)
                self.shapes[name] = tuple(piece.get_shape())
                self.dtypes[name] = piece.get_dtype()
                self._handles[name] = handle
        except FileNotFoundError:
            raise CheckpointError(f"{path} is missing; download the checkpoint again") from None
        except (SafetensorError, OSError) as error:
            raise CheckpointError(
                f"{path} ({_size(path)} bytes) is truncated or damaged: {error}. Download it again"
            ) from error

    def stored_bytes(self, names: Iterable[str]) -> int:
        """Bytes of some tensors."""
        return sum(prod(self.shapes[name]) * _ITEM_BYTES.get(self.dtypes[name], 1) for name in names)

    def digests(self) -> dict[str, str]:
        """File name to SHA-256, in hexadecimal. Reads every byte."""
        return {path.name: file_digest(path) for path in self.paths}

    def check(self, name: str, shape: tuple[int, ...], dtypes: Collection[str]) -> None:
        """Compares a tensor's header with what a format prescribes; reads no data.

        Args:
            name: The tensor.
            shape: What it must be.
            dtypes: Safetensors' names of the types it may have, such as ``I32``.

        Raises:
            CheckpointError: No such tensor, or of another shape or type.
        """
        dtype = self._require(name, self.dtypes)
        if self.shapes[name] != shape or dtype not in dtypes:
            raise CheckpointError(
                f"tensor {name} is {dtype} {self.shapes[name]}, expected {' or '.join(dtypes)} {shape}; the "
                "file is damaged, or belongs to another model"
            )

    def float_dtype(self, name: str) -> str:
        """The type of a tensor that must be a plain float: ``float16``, ``bfloat16`` or ``float32``.

        Raises:
            CheckpointError: No such tensor, or of another type, such as FP8.
        """
        dtype = self._require(name, self.dtypes)
        if dtype not in FLOATS:
            raise CheckpointError(
                f"tensor {name} is of type {dtype}; supported are float16, bfloat16 and float32, or "
                "compressed-tensors, GPTQ or AWQ in 4 or 8 bits. Choose a checkpoint of one of these"
            )
        return FLOATS[dtype]

    def tensor(self, name: str) -> Tensor:
        """One tensor, as stored.

        Raises:
            CheckpointError: No such tensor.
        """
        tensor: Tensor = self._require(name, self._handles).get_tensor(name)
        return tensor

    def _require(self, name: str, table: Mapping[str, Any]) -> Any:
        if name not in table:
            raise CheckpointError(f"tensor {name} is not in {', '.join(str(path) for path in self.paths)}")
        return table[name]

    def close(self) -> None:
        """Closes the files."""
        self._handles.clear()
        self._stack.close()


def find_tensor_files(folder: Path) -> list[Path]:
    """The safetensors files that hold a folder's weights.

    Raises:
        CheckpointError: None, several without an index, or an index that cannot be read.
    """
    index = folder / _INDEX
    if index.exists():
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
            raise CheckpointError(f"{index} has no weight_map of file names; download the checkpoint again")
        return [folder / name for name in sorted(set(weight_map.values()))]
    if (folder / "model.safetensors").exists():
        return [folder / "model.safetensors"]
    if any(folder.glob("*.bin")):
        raise CheckpointError(f"{folder} holds PyTorch .bin weights only; convert them to safetensors")
    raise CheckpointError(f"{folder} has no model.safetensors and no {_INDEX}; is it a model folder?")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file.

    Raises:
        CheckpointError: Missing, not JSON, or not an object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} does not hold a JSON object")
    return value


def file_digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def combined_digest(digests: Mapping[str, str]) -> str:
    """One ``sha256:<hex>`` over named digests, whatever their order."""
    lines = "".join(f"{name} {digest}\n" for name, digest in sorted(digests.items()))
    return f"sha256:{hashlib.sha256(lines.encode()).hexdigest()}"


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
