import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from spearhead.errors import ConfigError
from spearhead.quant.calibration import CalibrationOutcome, CalibrationRequest, OutcomeOptions, calibrate
from spearhead.quant.calibration.progress import Progress
from spearhead.quant.calibration.report import Surroundings

Artefact = Callable[..., Path]
Request = Callable[..., CalibrationRequest]
Sign = tuple[str, int]
NOWHERE = Surroundings(versions={}, commands=(), device="here")


class _Killed(Exception):
    """Stands for a kill."""


def _run(request: CalibrationRequest, progress: Progress) -> list[str]:
    said: list[str] = []
    outcome = CalibrationOutcome(OutcomeOptions(), NOWHERE, progress)
    calibrate(
        request,
        progress=progress,
        tell=said.append,
        begin=outcome.read,
        finish=outcome.score,
        after=outcome.publish,
    )
    return said


def _written(path: Path) -> tuple[bytes, bytes]:
    return (path / "spear/ec.safetensors").read_bytes(), (path / "spear/ec.json").read_bytes()


def _first_middle_last(signs: list[Sign]) -> list[Sign]:
    by_stage: dict[str, list[Sign]] = {}
    for sign in signs:
        by_stage.setdefault(sign[0], []).append(sign)
    return [
        found[place] for found in by_stage.values() for place in sorted({0, len(found) // 2, len(found) - 1})
    ]


def test_a_run_killed_in_every_stage_writes_the_same_bytes(
    artefact: Artefact, request_for: Request, tmp_path: Path
) -> None:
    path, copy = artefact(), tmp_path / "copy"
    shutil.copytree(path, copy)
    signs: list[Sign] = []
    _run(request_for(path, gate="force"), lambda stage, done, _: signs.append((stage, done)))
    assert {stage for stage, _ in signs} == {
        "self-sampling", "statistics", "damage", "trained-from-static", "gated-from-static",
        "gated-from-trained", "scores on held-out self-samples",
    }  # fmt: skip
    request = replace(request_for(copy, gate="force"), work=tmp_path / "work")
    for target in _first_middle_last(signs):

        def kill(stage: str, done: int, _: int, target: Sign = target) -> None:
            if (stage, done) == target:
                raise _Killed

        with pytest.raises(_Killed):
            _run(request, kill)
        assert not (copy / "spear/ec.json").exists()
    said = _run(request, lambda *_: None)
    assert _written(copy) == _written(path)
    assert "self-sampling: finished in an earlier run" in said


def test_a_kill_after_the_write_is_no_reason_to_refuse(
    artefact: Artefact, request_for: Request, tmp_path: Path
) -> None:
    request = replace(request_for(artefact()), work=tmp_path / "work")

    def die(_: object) -> None:
        raise _Killed

    with pytest.raises(_Killed):
        calibrate(request, after=die)
    before = _written(request.artefact)
    calibrate(request)
    assert _written(request.artefact) == before
    with pytest.raises(ConfigError, match="has compensators already"):
        calibrate(request)


def test_half_a_pair_of_files_is_mended(artefact: Artefact, request_for: Request, tmp_path: Path) -> None:
    request = replace(request_for(artefact()), work=tmp_path / "work")
    calibrate(request)
    before = _written(request.artefact)
    mark = tmp_path / "work/writing"
    mark.write_text("another artefact that shares the work folder")
    with pytest.raises(ConfigError, match="has compensators already"):
        calibrate(request)
    mark.write_text(f"{request.artefact.resolve()}\n")
    (request.artefact / "spear/ec.json").unlink()
    calibrate(request)
    assert _written(request.artefact) == before


def test_a_whole_pair_of_files_outlives_an_interrupted_write(
    artefact: Artefact, request_for: Request, tmp_path: Path
) -> None:
    request = replace(request_for(artefact()), work=tmp_path / "work")
    calibrate(request)
    before, mark = _written(request.artefact), tmp_path / "work/writing"
    digest = json.loads(before[1])["ec_sha256"]
    # Killed before the exchange: these are the old ones, which only --force replaces.
    mark.write_text(f"{request.artefact.resolve()}\n{digest}")
    with pytest.raises(ConfigError, match="has compensators already"):
        calibrate(request)
    assert _written(request.artefact) == before and not mark.exists()
    # Killed after it: these are the run's own.
    mark.write_text(f"{request.artefact.resolve()}\n")
    calibrate(request)
    assert _written(request.artefact) == before


def test_other_configurations_share_stages_and_never_results(
    artefact: Artefact, request_for: Request, tmp_path: Path
) -> None:
    path = artefact()
    first, other = (
        replace(request_for(path, factor_bits=bits), work=tmp_path / "work", force=True) for bits in (16, 8)
    )
    calibrate(first)
    said: list[str] = []
    rounded = calibrate(other, tell=said.append)
    assert "damage: finished in an earlier run" in said
    assert not any(sentence.startswith("trained") and "finished" in sentence for sentence in said)
    assert rounded.config.factor_bits == 8


def test_two_runs_never_share_a_work_folder(artefact: Artefact, request_for: Request, tmp_path: Path) -> None:
    request = replace(request_for(artefact()), work=tmp_path / "work")

    def again(*_: object) -> None:
        calibrate(request)

    with pytest.raises(ConfigError, match="is used by another run"):
        calibrate(request, progress=again)
    strange = tmp_path / "strange"
    strange.mkdir()
    (strange / "lock").touch()  # a name that anybody's file may have
    with pytest.raises(ConfigError, match="holds other files"):
        calibrate(replace(request, work=strange))
