from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from spearhead.errors import CheckpointError
from spearhead.model.checkpoint import open_checkpoint
from tests.model.checkpoint.published import (
    Grid,
    awq_tensors,
    edit_config,
    edit_tensors,
    publish,
    random_grid,
)

Factory = Callable[..., Path]
Q_PROJ = "model.layers.0.self_attn.q_proj"
SETTINGS = {"quant_method": "awq", "version": "gemm", "bits": 4, "zero_point": True}


def write(
    source: Path, grids: dict[str, Grid], group_size: int = 32, dense: str = "none", **settings: Any
) -> Path:
    def encode(module: str, weight: torch.Tensor) -> dict[str, torch.Tensor]:
        if dense in module:
            return {}
        grids[module] = random_grid(
            tuple(weight.shape), seed=len(grids), group_size=group_size, symmetric=False, act_order=False
        )
        return awq_tensors(grids[module])

    return publish(source, source.parent / "awq", {**SETTINGS, "group_size": group_size, **settings}, encode)


@pytest.fixture
def folder(tiny_checkpoint: Factory) -> Path:
    return write(tiny_checkpoint("llama"), {})


@pytest.mark.parametrize(
    ("group_size", "description"), [(32, "w4 awq, group 32"), (-1, "w4 awq, per channel")]
)
@pytest.mark.parametrize("tied", [True, False])
def test_weights_are_what_the_writer_meant(
    tiny_checkpoint: Factory, group_size: int, description: str, tied: bool
) -> None:
    source = tiny_checkpoint("qwen2", dtype="float16", tie_word_embeddings=tied)
    grids: dict[str, Grid] = {}
    folder = write(source, grids, group_size, version="GEMM", modules_to_not_convert=None)
    checkpoint, full = open_checkpoint(str(folder)), open_checkpoint(str(source))
    assert checkpoint.quantization == description
    assert checkpoint.variants == ("w4",)
    assert checkpoint.shapes == dict(full.shapes)
    for module, grid in grids.items():
        assert torch.equal(checkpoint.tensor(f"{module}.weight"), grid.weights()), module
    for name in full.shapes.keys() - {f"{module}.weight" for module in grids}:
        assert torch.equal(checkpoint.tensor(name), full.tensor(name)), name


def test_the_outputs_of_a_word_are_interleaved(folder: Path) -> None:
    def change(tensors: dict[str, Any]) -> None:
        # From the low end: outputs 0, 2, 4, 6, 1, 3, 5, 7, each holding its own number.
        word = torch.tensor([0x20, 0x64, 0x31, 0x75], dtype=torch.uint8).view(torch.int32)
        tensors[f"{Q_PROJ}.qweight"][5, 2] = word

    edit_tensors(folder / "model.safetensors", change)
    weight = open_checkpoint(str(folder)).quantized_weight(Q_PROJ)
    assert weight is not None
    assert weight.codes[16:24, 5].tolist() == [-8, -7, -6, -5, -4, -3, -2, -1]


def test_modules_may_stay_dense(tiny_checkpoint: Factory) -> None:
    source = tiny_checkpoint("llama")
    folder = write(source, {}, dense="q_proj", modules_to_not_convert=["q_proj"])
    checkpoint = open_checkpoint(str(folder))
    assert checkpoint.quantized_weight(Q_PROJ) is None
    name = f"{Q_PROJ}.weight"
    assert torch.equal(checkpoint.tensor(name), open_checkpoint(str(source)).tensor(name))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": "gemv"}, "version 'gemv'"),
        ({"version": "gemv_fast"}, "version 'gemv_fast'"),
        ({"version": "exllama"}, "version 'exllama'"),
        ({"version": "marlin"}, "version 'marlin'"),
        ({"bits": 3}, "bits 3"),
        ({"zero_point": False}, "zero_point False"),
        ({"group_size": 0}, "group_size 0"),
    ],
)
def test_variants_of_the_format_are_refused_by_name(
    folder: Path, change: dict[str, Any], message: str
) -> None:
    edit_config(folder, lambda config: config["quantization_config"].update(change))
    with pytest.raises(CheckpointError, match=f"is AWQ with {message}; supported is version gemm"):
        open_checkpoint(str(folder))


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (
            lambda t: t.update({f"{Q_PROJ}.qweight": torch.zeros(64, 7, dtype=torch.int32)}),
            r"qweight is I32 \(64, 7\)",
        ),
        (
            lambda t: t.update({f"{Q_PROJ}.qzeros": torch.zeros(2, 8)}),
            r"qzeros is F32 \(2, 8\), expected I32",
        ),
        (lambda t: t.update({f"{Q_PROJ}.scales": torch.ones(1, 64)}), r"scales is F32 \(1, 64\), expected"),
        (lambda t: t[f"{Q_PROJ}.scales"].fill_(float("inf")), rf"{Q_PROJ}\.scales holds NaN or infinity"),
        (lambda t: t.pop(f"{Q_PROJ}.scales"), rf"tensor {Q_PROJ}\.scales is not in"),
        (lambda t: t.update({f"{Q_PROJ}.g_idx": torch.zeros(64)}), r"g_idx is not part of"),
    ],
)
def test_tensors_that_do_not_fit_are_named(
    folder: Path, edit: Callable[[dict[str, Any]], None], message: str
) -> None:
    edit_tensors(folder / "model.safetensors", edit)
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(str(folder))


def test_a_group_that_does_not_divide_the_inputs_is_refused(folder: Path) -> None:
    edit_config(folder, lambda config: config["quantization_config"].update(group_size=64))
    with pytest.raises(CheckpointError, match=r"mlp\.down_proj is 64 by 96; AWQ needs .* groups of 64"):
        open_checkpoint(str(folder))
