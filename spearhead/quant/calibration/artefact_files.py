"""Stage 9: the compensators into the artefact, whole or not at all."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from spearhead.errors import CalibrationError, ConfigError
from spearhead.model.checkpoint.compensator_files import (
    CompensatorDescription,
    StoredCompensator,
    save_compensators,
)
from spearhead.model.checkpoint.compensators import FILE, FOLDER
from spearhead.model.checkpoint.durable import put_in_place
from spearhead.model.checkpoint.tensor_files import file_digest, read_json
from spearhead.quant.calibration.subject import Subject

_WRITING, _WRITTEN = "writing", "written"
_EC_FILE = f"{FOLDER}/{FILE}"


def check_replaceable(folder: Path, work: Path, *, force: bool) -> None:
    """Refuses to lose earlier compensators, but for those of the run that is now going on.

    Raises:
        ConfigError: There are some and ``force`` was not given.
    """
    file, mark = folder / _EC_FILE, work / _WRITTEN
    if mark.exists() and file.exists() and mark.read_text(encoding="utf-8") == file_digest(file):
        return
    if not force and (file.exists() or file.with_suffix(".json").exists()):
        raise ConfigError(
            f"{folder} has compensators already ({_EC_FILE}); replace them with --force, or remove them"
        )


def mend_interrupted_write(folder: Path, work: Path) -> None:
    """Puts an artefact in order whose compensators were being exchanged when a run was killed.

    Half a pair of files goes, so that the artefact opens again. A whole pair stays: that of before, or the
    new one, which the run that is going on may replace.
    """
    mark = work / _WRITING
    found = mark.read_text(encoding="utf-8").split("\n") if mark.exists() else []
    if found[:1] != [_place(folder)]:
        return
    file = folder / _EC_FILE
    file.with_suffix(".partial").unlink(missing_ok=True)
    if not _is_whole(file):
        for path in (file, file.with_suffix(".json")):
            path.unlink(missing_ok=True)
        _name_file(folder, present=False)
    elif file_digest(file) != found[1]:
        _name_file(folder, present=True)
        (work / _WRITTEN).write_text(file_digest(file), encoding="utf-8")
    mark.unlink()


def _is_whole(file: Path) -> bool:
    description = file.with_suffix(".json")
    if not (file.exists() and description.exists()):
        return False
    return bool(read_json(description).get("ec_sha256") == file_digest(file))


def write_compensators(
    subject: Subject, compensators: Mapping[str, StoredCompensator], details: Mapping[str, Any], work: Path
) -> Path:
    """Writes ``spear/ec.safetensors`` and ``spear/ec.json``; names them in ``config.json`` if it is ours.

    Args:
        subject: Whose artefact gets them.
        compensators: By module.
        details: What ``ec.json`` says beside digests.
        work: Where a mark stands while files are exchanged.

    Returns:
        The safetensors file.

    Raises:
        CalibrationError: They cannot be written; what was there before still is.
    """
    description = CompensatorDescription(
        w4_sha256=subject.artefact.weight_digests,
        quantization=subject.artefact.quantization,
        details=details,
    )
    mark, earlier = work / _WRITING, subject.folder / _EC_FILE
    before = file_digest(earlier) if earlier.exists() else ""
    try:
        mark.write_text(f"{_place(subject.folder)}\n{before}", encoding="utf-8")
        file = save_compensators(subject.folder, compensators, description)
        _name_file(subject.folder, present=True)
        (work / _WRITTEN).write_text(file_digest(file), encoding="utf-8")
    except (OSError, SafetensorError) as error:
        (subject.folder / _EC_FILE).with_suffix(".partial").unlink(missing_ok=True)
        raise CalibrationError(
            f"{subject.folder / FOLDER} cannot be written: {error}. Make room and run the same command "
            "again: finished stages are kept"
        ) from error
    mark.unlink()
    return file


def forget_written(work: Path) -> None:
    """The run has ended: its compensators are as good as any other."""
    (work / _WRITTEN).unlink(missing_ok=True)


def _place(folder: Path) -> str:
    """Names an artefact in a work folder that several may share."""
    return str(folder.resolve())


def _name_file(folder: Path, *, present: bool) -> None:
    """Names the compensators in an artefact's own ``config.json``; published ones stay untouched."""
    path = folder / "config.json"
    if not path.exists():
        return
    config = read_json(path)
    spear = config.get("spear")
    if not isinstance(spear, dict) or ("ec_file" in spear) == present:
        return
    if present:
        spear["ec_file"] = _EC_FILE
    else:
        del spear["ec_file"]
    part = path.with_name("config.json.partial")
    try:
        part.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        put_in_place(part, path)
    except OSError:
        part.unlink(missing_ok=True)
        raise
