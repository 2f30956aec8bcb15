from collections.abc import Callable
from pathlib import Path

import pytest

from spearhead.errors import CheckpointError
from spearhead.model.checkpoint import open_checkpoint
from spearhead.model.checkpoint.hub import is_hub_id


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("HuggingFaceTB/SmolLM2-135M-Instruct", True),
        ("owner/name_1.5-B", True),
        ("/absolute/path", False),
        ("./relative", False),
        ("../relative/path", False),
        ("one", False),
        ("a/b/c", False),
        ("", False),
    ],
)
def test_only_owner_and_name_are_a_hub_id(text: str, expected: bool) -> None:
    assert is_hub_id(text) == expected


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache and no network; the hub's client reads both settings when it is imported."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def test_an_unreachable_hub_is_one_clear_error(offline: Path) -> None:
    with pytest.raises(CheckpointError, match=r"owner/nothing is no folder here.*local folder"):
        open_checkpoint("owner/nothing")


def test_a_cached_checkpoint_opens_without_the_network(
    offline: Path, tiny_checkpoint: Callable[..., Path]
) -> None:
    folder, commit = tiny_checkpoint("llama"), "0" * 40
    entry = offline / "models--owner--tiny"
    (entry / "refs").mkdir(parents=True)
    (entry / "refs" / "main").write_text(commit)
    (entry / "snapshots").mkdir()
    folder.rename(entry / "snapshots" / commit)
    checkpoint = open_checkpoint("owner/tiny")
    assert checkpoint.path == entry / "snapshots" / commit
    assert checkpoint.config.layer_count == 2
