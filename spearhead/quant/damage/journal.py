"""Finished modules as JSON lines, so that a measurement goes on after a kill."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

from spearhead.errors import CalibrationError
from spearhead.quant.damage.report import DamageKind

Measured = dict[DamageKind, float]


class DamageJournal:
    """A file of one header line, then one line a module. Nothing is kept without a path.

    Args:
        path: The file; made when the first module is added.
        header: Everything that the numbers depend on.

    Raises:
        CalibrationError: The file belongs to another measurement or is damaged.
    """

    def __init__(self, path: Path | None, header: Mapping[str, object]) -> None:
        self.measured: dict[str, Measured] = {}
        self._path = path
        self._header = dict(header)
        if path is not None and path.exists():
            self._read(path)

    def add(self, measured: Mapping[str, Measured]) -> None:
        """Keeps some modules; they survive a kill once this returns.

        Raises:
            CalibrationError: The file cannot be written.
        """
        self.measured |= measured
        if self._path is None:
            return
        lines = [json.dumps({"module": module, **values}) for module, values in measured.items()]
        try:
            self._append(self._path, lines)
        except OSError as error:
            raise CalibrationError(
                f"{self._path} cannot be written: {error}; free space or choose another folder"
            ) from error

    def _append(self, path: Path, lines: list[str]) -> None:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            lines = [json.dumps(self._header), *lines]
        with path.open("a", encoding="utf-8") as file:
            file.write("".join(f"{line}\n" for line in lines))
            file.flush()
            os.fsync(file.fileno())

    def _read(self, path: Path) -> None:
        # What a kill cut off has no newline; it is dropped, and measured again.
        content = path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if whole != content:
            os.truncate(path, len(whole))
        if not whole:
            path.unlink()
            return
        try:
            header, *rows = [json.loads(line) for line in whole.splitlines()]
            found = {row.pop("module"): row for row in rows}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CalibrationError(f"{path} is damaged: {error}; delete it to measure again") from error
        if header != self._header:
            raise CalibrationError(
                f"{path} belongs to another measurement: {_differences(header, self._header)}. Delete it to "
                "measure again, or go on with what it was made with"
            )
        self.measured = found


def _differences(found: object, expected: Mapping[str, object]) -> str:
    known = found if isinstance(found, dict) else {}
    return "; ".join(
        f"{name} is {known.get(name)!r}, wanted {value!r}"
        for name, value in expected.items()
        if known.get(name) != value
    )
