from pathlib import Path

import pytest

from spearhead.quant.calibration.store import StageResult, open_store

MADE_BY = {"torch": "2.9.0", "device": "a processor"}


def _nothing(_sentence: str) -> None:
    pass


def _counted(path: Path, calls: list[str], *, format_version: int = 1, **made_by: str) -> None:
    def compute(_: Path) -> StageResult:
        calls.append("computed")
        return StageResult(values={}, tensors={})

    with open_store(path, MADE_BY | made_by, clock=lambda: 0.0, tell=_nothing) as store:
        store.stage("damage", {"tokens": 5}, compute, format_version=format_version)


def test_a_result_of_another_torch_device_or_format_is_not_taken(tmp_path: Path) -> None:
    calls: list[str] = []
    for _ in range(2):
        _counted(tmp_path, calls)
        _counted(tmp_path, calls, torch="2.10.0")
        _counted(tmp_path, calls, device="a GPU")
        _counted(tmp_path, calls, format_version=2)
    assert calls == ["computed"] * 4


@pytest.mark.parametrize("there_before", [False, True])
def test_a_folder_in_which_nothing_was_begun_is_left_as_it_was_found(
    tmp_path: Path, there_before: bool
) -> None:
    path = tmp_path / "work"
    if there_before:
        path.mkdir()
    with (
        pytest.raises(RuntimeError),
        open_store(path, MADE_BY, clock=lambda: 0.0, tell=_nothing),
    ):
        raise RuntimeError
    assert path.exists() == there_before
    assert not there_before or not list(path.iterdir())
