from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from spearhead.errors import ConfigError
from spearhead.quant.quantizing.work_folder import open_work_folder

IDENTITY = {"source": "sha256:1", "recipe": "channel/7.5:rtn"}


def test_a_second_opening_goes_on_where_the_first_was(tmp_path: Path) -> None:
    with open_work_folder(tmp_path / "w", IDENTITY, restart=False) as work:
        assert work.next_layer == 0 and not work.has("embedding")
        work.write_part("embedding", {"a": torch.ones(3)}, [{"module": "m"}])
        work.mark_next_layer(2)
    with open_work_folder(tmp_path / "w", IDENTITY, restart=False) as work:
        assert work.next_layer == 2 and work.has("embedding")
        assert work.read_report("embedding") == [{"module": "m"}]
        assert torch.equal(load_file(work.path / "embedding.safetensors")["a"], torch.ones(3))


def test_another_run_is_refused_with_what_differs_and_may_start_over(tmp_path: Path) -> None:
    with open_work_folder(tmp_path / "w", IDENTITY, restart=False) as work:
        work.mark_next_layer(2)
    other = IDENTITY | {"recipe": "group32/7.5:rtn"}
    with (
        pytest.raises(ConfigError, match=r"recipe was 'channel/7.5:rtn', is 'group32/7.5:rtn'.*--restart"),
        open_work_folder(tmp_path / "w", other, restart=False),
    ):
        pass
    with open_work_folder(tmp_path / "w", other, restart=True) as work:
        assert work.next_layer == 0


def test_two_runs_never_share_a_folder(tmp_path: Path) -> None:
    with (
        open_work_folder(tmp_path / "w", IDENTITY, restart=False),
        pytest.raises(ConfigError, match="is used by another run"),
        open_work_folder(tmp_path / "w", IDENTITY, restart=True),
    ):
        pass


@pytest.mark.parametrize("name", ["thesis.txt", "lock"])
def test_a_folder_with_other_files_is_refused_and_untouched(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with (
        pytest.raises(ConfigError, match="holds other files"),
        open_work_folder(tmp_path, IDENTITY, restart=True),
    ):
        pass
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_file_is_no_work_folder(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with (
        pytest.raises(ConfigError, match=r"thesis.txt is a file; choose a folder"),
        open_work_folder(tmp_path / "thesis.txt", IDENTITY, restart=True),
    ):
        pass
    assert (tmp_path / "thesis.txt").read_text() == "mine"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_residual_stream_comes_back_from_its_file(tmp_path: Path, dtype: torch.dtype) -> None:
    stream = torch.randn(2, 5, 8).to(dtype)
    with open_work_folder(tmp_path / "w", IDENTITY, restart=False) as work:
        assert torch.equal(work.keep_stream(3, 1, stream), stream)
        assert torch.equal(work.stream(3, 1, (2, 5, 8), dtype), stream)


def test_streams_of_finished_layers_are_dropped(tmp_path: Path) -> None:
    with open_work_folder(tmp_path / "w", IDENTITY, restart=False) as work:
        for layer in range(3):
            work.keep_stream(layer, 0, torch.ones(1, 1, 1))
        work.mark_next_layer(2)
        assert [path.name for path in work.path.glob("stream-*")] == ["stream-00002-00000.bin"]


def test_a_failed_write_leaves_no_half_file_and_says_what_to_do(tmp_path: Path) -> None:
    with open_work_folder(tmp_path / "w", IDENTITY, restart=False) as work:
        (work.path / "layer.safetensors").mkdir()  # cannot be replaced by a file
        with pytest.raises(ConfigError, match=r"cannot be written \(\d+ MB are free there\).*same command"):
            work.write_tensors("layer", {"a": torch.ones(1)})
        assert not list(work.path.glob("*.unfinished"))


def test_a_folder_that_cannot_be_written_is_an_error_that_says_so(tmp_path: Path) -> None:
    (tmp_path / "spearhead-quantize.lock").mkdir()
    with (
        pytest.raises(ConfigError, match=r"cannot be written"),
        open_work_folder(tmp_path, IDENTITY, restart=False),
    ):
        pass
