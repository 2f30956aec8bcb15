"""Where a quantisation run keeps finished layers until the artefact is whole, so that it survives a kill.

    run.json                     what the run is (source, recipe, calibration) and the next layer
    <part>.safetensors           tensors of the artefact: embedding, layer-00000, …, head
    <part>.json                  their module reports
    stream-<layer>-<batch>.bin   the residual stream before the next layer
    spearhead-quantize.lock      held while a run lasts, and the sign that the folder is ours to empty

Every file is written beside its place and renamed into it. A layer counts once the residual stream behind it
is complete; a kill costs at most one layer.
"""

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from spearhead.errors import ConfigError
from spearhead.model.checkpoint.durable import put_in_place
from spearhead.model.checkpoint.tensor_files import read_json
from spearhead.quant.claimed_folder import claim, claimed_folder

_RUN, _LOCK, _NEXT = "run.json", "spearhead-quantize.lock", "next_layer"


class WorkFolder:
    """The files of one run. Use :func:`open_work_folder`.

    Args:
        path: The folder.
        identity: What the run is, as JSON values; must equal what an earlier run wrote there.
    """

    def __init__(self, path: Path, identity: Mapping[str, Any]) -> None:
        self.path = path
        self._identity = dict(identity)
        self.next_layer = self._resume()

    def _resume(self) -> int:
        if not (self.path / _RUN).exists():
            self.mark_next_layer(0)
            return 0
        found = read_json(self.path / _RUN)
        next_layer = int(found.pop(_NEXT, 0))
        different = [key for key, value in self._identity.items() if found.get(key) != value]
        if different:
            changes = "; ".join(
                f"{key} was {found.get(key)!r}, is {self._identity[key]!r}" for key in different
            )
            raise ConfigError(
                f"{self.path} holds an interrupted run of another kind ({changes}); finish that one, choose "
                "another folder with --work, or drop what it did with --restart"
            )
        return next_layer

    def mark_next_layer(self, layer: int) -> None:
        """Everything before ``layer`` is finished; drops what only earlier layers needed."""
        self.write_json(_RUN, {**self._identity, _NEXT: layer})
        self.next_layer = layer
        for path in self.path.glob("stream-*"):
            if int(path.name.split("-")[1]) < layer:
                path.unlink()

    def has(self, part: str) -> bool:
        """Whether a part is finished."""
        return (self.path / f"{part}.safetensors").exists()

    def write_part(
        self, part: str, tensors: Mapping[str, Tensor], report: Sequence[Mapping[str, Any]]
    ) -> None:
        """Stores tensors of the artefact and what to report about them."""
        self.write_json(f"{part}.json", report)
        self.write_tensors(part, tensors)

    def write_tensors(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        """Stores tensors as ``<name>.safetensors``.

        Raises:
            ConfigError: The disk is full, or the folder cannot be written.
        """
        with self._writing(f"{name}.safetensors") as beside:
            # Readers choose the framework by this entry.
            save_file(
                {key: value.contiguous() for key, value in tensors.items()}, beside, metadata={"format": "pt"}
            )

    def write_json(self, name: str, value: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Stores JSON."""
        with self._writing(name) as beside:
            beside.write_text(json.dumps(value), encoding="utf-8")

    def read_report(self, part: str) -> list[dict[str, Any]]:
        """What :meth:`write_part` was told to report."""
        value: list[dict[str, Any]] = json.loads((self.path / f"{part}.json").read_text(encoding="utf-8"))
        return value

    def keep_stream(self, layer: int, batch: int, stream: Tensor) -> Tensor:
        """Writes the residual stream before a layer and returns it mapped from the file, on the CPU."""
        with self._writing(_stream_name(layer, batch)) as beside:
            stream.contiguous().cpu().view(torch.uint8).numpy().tofile(beside)
        return self.stream(layer, batch, stream.shape, stream.dtype)

    def stream(self, layer: int, batch: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """What :meth:`keep_stream` wrote, mapped; pages come and go as the system likes."""
        path = str(self.path / _stream_name(layer, batch))
        size = torch.Size(shape).numel()
        return torch.from_file(path, shared=False, size=size, dtype=dtype).view(*shape)

    def discard(self) -> None:
        """Removes everything."""
        shutil.rmtree(self.path, ignore_errors=True)

    @contextmanager
    def _writing(self, name: str) -> Iterator[Path]:
        beside = self.path / f"{name}.unfinished"
        with explained_write_errors(self.path):
            try:
                yield beside
                put_in_place(beside, self.path / name)
            except BaseException:
                beside.unlink(missing_ok=True)
                raise


@contextmanager
def open_work_folder(path: Path, identity: Mapping[str, Any], *, restart: bool) -> Iterator[WorkFolder]:
    """Takes a work folder for this process alone, and goes on with what an interrupted run left there.

    Args:
        path: Made if it is not there.
        identity: What the run is, as JSON values.
        restart: Drop what is there.

    Raises:
        ConfigError: Another process uses it, it belongs to another run or to somebody else, or it cannot be
            written.
    """
    with claimed_folder(path, _LOCK):
        if restart:
            _empty(path)
        yield WorkFolder(path, identity)


@contextmanager
def fresh_folder(path: Path) -> Iterator[None]:
    """Makes an empty folder for this process alone; on failure it goes.

    Args:
        path: In a folder that exists. What an interrupted run left there is removed.

    Raises:
        ConfigError: Another process fills it.
    """
    path.mkdir(exist_ok=True)
    handle = os.open(path, os.O_RDONLY)
    try:
        claim(handle, path)
        try:
            _empty(path)
            yield
        except BaseException:
            shutil.rmtree(path, ignore_errors=True)
            raise
    finally:
        os.close(handle)


@contextmanager
def explained_write_errors(folder: Path) -> Iterator[None]:
    """Turns a failed write into an error that says what to do; the half-written file is gone by then.

    Raises:
        ConfigError: In place of an operating system's error.
    """
    try:
        yield
    except (OSError, SafetensorError) as error:
        free = shutil.disk_usage(folder).free if folder.exists() else 0
        raise ConfigError(
            f"{folder} cannot be written ({free / 1e6:.0f} MB are free there): {error}. Make room and run "
            "the same command again: finished layers are kept and not done twice"
        ) from error


def _stream_name(layer: int, batch: int) -> str:
    return f"stream-{layer:05}-{batch:05}.bin"


def _empty(path: Path) -> None:
    for entry in path.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        elif entry.name != _LOCK:
            entry.unlink()
