import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from spearhead.errors import CheckpointError
from spearhead.quant.quantizing.shards import join_files, join_parts


def parts(folder: Path) -> tuple[list[Path], dict[str, torch.Tensor]]:
    """Odd sizes of many types, which would lose their alignment when laid end to end."""
    everything: dict[str, torch.Tensor] = {}
    paths = []
    for number in range(4):
        tensors = {
            f"{number}.half": torch.randn(3, generator=torch.Generator().manual_seed(number)).half(),
            f"{number}.words": torch.arange(5, dtype=torch.int32) + number,
            f"{number}.shape": torch.tensor([number, 7]),
            f"{number}.norm": torch.full((1,), float(number)),
            f"{number}.brain": torch.full((3, 1), float(number), dtype=torch.bfloat16),
        }
        paths.append(folder / f"part-{number}")
        save_file(tensors, paths[-1])
        everything |= tensors
    return paths, everything


@pytest.mark.parametrize(("shard_bytes", "count"), [(1 << 20, 1), (150, 2), (1, 4)])
def test_shards_hold_every_tensor_once(tmp_path: Path, shard_bytes: int, count: int) -> None:
    paths, everything = parts(tmp_path)
    (tmp_path / "out").mkdir()
    total = join_parts(paths, tmp_path / "out", shard_bytes)
    assert total == sum(tensor.nbytes for tensor in everything.values())
    files = sorted((tmp_path / "out").glob("*.safetensors"))
    assert len(files) == count
    found = {name: tensor for file in files for name, tensor in load_file(file).items()}
    assert found.keys() == everything.keys()
    for name, tensor in everything.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor), name


def test_one_shard_has_no_index_and_several_have_a_true_one(tmp_path: Path) -> None:
    paths, everything = parts(tmp_path)
    for name, size in (("one", 1 << 20), ("many", 1)):
        (tmp_path / name).mkdir()
        join_parts(paths, tmp_path / name, size)
    assert [path.name for path in (tmp_path / "one").iterdir()] == ["model.safetensors"]
    index = json.loads((tmp_path / "many" / "model.safetensors.index.json").read_text())
    assert index["weight_map"].keys() == everything.keys()
    for name, file in index["weight_map"].items():
        assert name in load_file(tmp_path / "many" / file)
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in everything.values())


def test_a_file_that_lost_its_end_is_named(tmp_path: Path) -> None:
    paths, _ = parts(tmp_path)
    paths[2].write_bytes(paths[2].read_bytes()[:-3])
    with pytest.raises(CheckpointError, match=r"part-2 ends 3 bytes before tensor .* does.*--restart"):
        join_files(paths, tmp_path / "all.safetensors")


def test_files_are_joined_into_one(tmp_path: Path) -> None:
    paths, everything = parts(tmp_path)
    join_files(paths, tmp_path / "all.safetensors")
    assert load_file(tmp_path / "all.safetensors").keys() == everything.keys()
