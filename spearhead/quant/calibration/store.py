"""Where a calibration keeps finished stages, so that it goes on after a kill at any moment.

    spearhead-calibrate.lock      held while a run uses the folder, and the sign that it is ours
    <stage>-<key>.safetensors     the result of a finished stage
    <stage>-<key>/                what an unfinished stage needs to go on
    hidden-states-<number>.bin    loses its name as soon as it is open, and goes with the run

A key is a digest of everything that the stage depends on, other stages, the device and the version of torch
among it, so that results of different configurations and machines lie side by side and never mix.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from spearhead import __version__
from spearhead.errors import CalibrationError
from spearhead.model.checkpoint.durable import put_in_place
from spearhead.quant.claimed_folder import claimed_folder

_HEADER = "spearhead_calibration"
_LOCK = "spearhead-calibrate.lock"
_KEY_LENGTH = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class StageResult:
    """What a stage found.

    Attributes:
        values: JSON values.
        tensors: By name, on the CPU.
        key: Digest of what it depends on; empty until it is stored.
        duration_s: Seconds that it took, without those of runs that were interrupted.
    """

    values: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    key: str = ""
    duration_s: float = 0.0


Compute = Callable[[Path], StageResult]
"""Computes a stage; the folder is its own, for journals. It may not exist yet."""

Clock = Callable[[], float]
"""Seconds since some moment."""


class StageStore:
    """The results of one work folder. Use :func:`open_store`.

    Args:
        path: The folder.
        made_by: What computes, as JSON values: every result depends on it.
        clock: Times stages.
        tell: Told in a sentence when a stage was finished before, or goes on.
    """

    def __init__(
        self, path: Path, made_by: Mapping[str, str], clock: Clock, tell: Callable[[str], None]
    ) -> None:
        self.path = path
        self._made_by = dict(made_by)
        self._clock = clock
        self._tell = tell

    def stage(
        self, name: str, depends_on: Mapping[str, Any], compute: Compute, *, format_version: int = 1
    ) -> StageResult:
        """The stored result, or a new one that is stored before it is returned.

        Args:
            name: Of the stage; part of the file's name.
            depends_on: Everything that decides the result, as JSON values.
            compute: Called where there is no result yet.
            format_version: Of the result and the journal; another one reads neither.

        Raises:
            CalibrationError: A stored result is damaged, or the folder cannot be written.
        """
        key = self.key(name, depends_on, format_version)
        file, journal = self.path / f"{name}-{key}.safetensors", self.path / f"{name}-{key}"
        if file.exists():
            self._tell(f"{name}: finished in an earlier run")
            shutil.rmtree(journal, ignore_errors=True)
            return _load(file, key)
        if journal.exists():
            self._tell(f"{name}: going on where an earlier run stopped")
        began_s = self._clock()
        found = compute(journal)
        _save(file, found, self._clock() - began_s)
        shutil.rmtree(journal, ignore_errors=True)
        return _load(file, key)

    def key(self, name: str, depends_on: Mapping[str, Any], format_version: int = 1) -> str:
        """Digest of what a stage depends on; other versions of this software have other keys."""
        text = json.dumps([name, __version__, format_version, self._made_by, depends_on], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:_KEY_LENGTH]

    def discard(self) -> None:
        """Removes everything."""
        shutil.rmtree(self.path, ignore_errors=True)


@contextmanager
def open_store(
    path: Path, made_by: Mapping[str, str], *, clock: Clock, tell: Callable[[str], None]
) -> Iterator[StageStore]:
    """Takes a work folder for this process alone; one that nothing was begun in is left as it was found.

    Raises:
        ConfigError: Another run uses it, it holds something else, or it cannot be written.
    """
    there_before = path.exists()
    with claimed_folder(path, _LOCK):
        try:
            yield StageStore(path, made_by, clock, tell)
        finally:
            if path.exists() and [entry.name for entry in path.iterdir()] == [_LOCK]:
                (path / _LOCK).unlink()
                if not there_before:
                    path.rmdir()


def _save(file: Path, found: StageResult, duration_s: float) -> None:
    header = json.dumps({"values": found.values, "duration_s": duration_s})
    part = file.with_name(f"{file.name}.part")
    tensors = {name: tensor.contiguous() for name, tensor in found.tensors.items()}
    try:
        save_file(tensors, part, metadata={_HEADER: header})
        put_in_place(part, file)
    except (OSError, SafetensorError) as error:
        part.unlink(missing_ok=True)
        raise CalibrationError(
            f"{file} cannot be written: {error}. Make room and run the same command again: finished stages "
            "are kept"
        ) from error


def _load(file: Path, key: str) -> StageResult:
    try:
        with safe_open(file, "pt") as opened:
            header = json.loads((opened.metadata() or {})[_HEADER])
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (no mapping)
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise CalibrationError(f"{file} is damaged: {error}; delete it") from error
    return StageResult(
        values=header["values"], tensors=tensors, key=key, duration_s=float(header["duration_s"])
    )
