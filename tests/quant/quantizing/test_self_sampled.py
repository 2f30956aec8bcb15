from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from spearhead.model.architecture import ModelConfig
from spearhead.model.checkpoint import open_checkpoint
from spearhead.quant import RunSettings
from spearhead.quant.quantizing.self_sampled import rows_at_once, sampled_sequences


def sample(folder: Path, work: Path, **changes: Any) -> list[list[int]]:
    values: dict[str, Any] = {"count": 5, "length": 20, "settings": RunSettings(), "work": work}
    with closing(open_checkpoint(str(folder))) as checkpoint:
        return sampled_sequences(checkpoint, **(values | changes))


def test_the_same_arguments_give_the_same_sequences(
    tiny_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    folder = tiny_checkpoint("llama")
    first = sample(folder, tmp_path / "a")
    assert [len(sequence) for sequence in first] == [20] * 5
    assert sample(folder, tmp_path / "b") == first


def test_finished_batches_are_not_sampled_again(tiny_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    folder = tiny_checkpoint("llama")
    first = sample(folder, tmp_path / "work")
    told: list[int] = []
    assert sample(folder, tmp_path / "work", progress=lambda done, _: told.append(done)) == first
    assert not told


@pytest.mark.parametrize(("layers", "rows"), [(30, 256), (32 * 64, 4), (10**7, 1)])
def test_large_models_write_fewer_sequences_at_once(layers: int, rows: int) -> None:
    shape = {
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": layers,
        "num_attention_heads": 1,
        "vocab_size": 8,
        "max_position_embeddings": 4096,
    }
    assert rows_at_once(ModelConfig.from_hugging_face(shape), 1024, 4) == rows
