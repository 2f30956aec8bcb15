from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from spearhead.errors import CheckpointError
from spearhead.model.checkpoint import load_variants, open_checkpoint
from spearhead.model.checkpoint.layout import linear_modules
from spearhead.model.quantization import InputGroups
from tests.model.checkpoint.published import (
    Grid,
    edit_config,
    edit_tensors,
    gptq_tensors,
    publish,
    random_grid,
)

Factory = Callable[..., Path]
Q_PROJ, DOWN = "model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj"


class Published:
    """A GPTQ folder and the weights that its writer meant."""

    def __init__(
        self, source: Path, *, bits: int = 4, group_size: int = 32, version: int = 1, **grid: Any
    ) -> None:
        self.grids: dict[str, Grid] = {}
        index = grid.pop("with_index", True)

        def encode(module: str, weight: torch.Tensor) -> dict[str, torch.Tensor]:
            self.grids[module] = random_grid(
                tuple(weight.shape), seed=len(self.grids), bits=bits, group_size=group_size, **grid
            )
            return gptq_tensors(self.grids[module], bits=bits, version=version, with_index=index)

        settings = {
            "quant_method": "gptq",
            "bits": bits,
            "group_size": group_size,
            "desc_act": grid["act_order"],
            "sym": grid["symmetric"],
        }
        if version == 2:
            settings["checkpoint_format"] = "gptq_v2"
        self.folder = publish(source, source.parent / "gptq", settings, encode)


@pytest.fixture
def published(tiny_checkpoint: Factory) -> Published:
    return Published(tiny_checkpoint("llama"), symmetric=True, act_order=False)


@pytest.mark.parametrize(
    ("settings", "description"),
    [
        ({"symmetric": True, "act_order": False}, "w4 gptq, group 32"),
        ({"symmetric": True, "act_order": True}, "w4 gptq, group 32, act-order"),
        ({"symmetric": False, "act_order": True, "version": 2}, "w4 gptq asymmetric, group 32, act-order"),
        ({"symmetric": False, "act_order": False}, "w4 gptq asymmetric, group 32"),
        ({"symmetric": True, "act_order": False, "group_size": -1, "version": 2}, "w4 gptq, per channel"),
        ({"symmetric": True, "act_order": False, "with_index": False}, "w4 gptq, group 32"),
        ({"symmetric": True, "act_order": False, "bits": 8}, "w8 gptq, group 32"),
        (
            {"symmetric": False, "act_order": True, "bits": 8, "version": 2},
            "w8 gptq asymmetric, group 32, act-order",
        ),
        # 64 does not divide the 96 inputs of the down projection: its last group is smaller.
        ({"symmetric": True, "act_order": False, "group_size": 64}, "w4 gptq, group 64"),
        ({"symmetric": True, "act_order": False, "group_size": 64, "with_index": False}, "w4 gptq, group 64"),
    ],
)
def test_weights_are_what_the_writer_meant(
    tiny_checkpoint: Factory, settings: dict[str, Any], description: str
) -> None:
    source = tiny_checkpoint("qwen2", dtype="float16")
    published = Published(source, **settings)
    checkpoint, full = open_checkpoint(str(published.folder)), open_checkpoint(str(source))
    assert checkpoint.quantization == description
    assert checkpoint.variants == ("w4",)
    assert checkpoint.weight_dtype == "float16"
    assert checkpoint.shapes == dict(full.shapes)
    for module, grid in published.grids.items():
        assert torch.equal(checkpoint.tensor(f"{module}.weight"), grid.weights()), module
    for name in full.shapes.keys() - {f"{module}.weight" for module in published.grids}:
        assert torch.equal(checkpoint.tensor(name), full.tensor(name)), name


def test_a_word_holds_the_codes_of_eight_inputs_from_its_low_end(published: Published) -> None:
    def write(tensors: dict[str, Any]) -> None:
        tensors[f"{Q_PROJ}.qweight"][1, 3] = torch.tensor([0x21, 0x43, 0x65, 0xF7], dtype=torch.uint8).view(
            torch.int32
        )

    edit_tensors(published.folder / "model.safetensors", write)
    weight = open_checkpoint(str(published.folder)).quantized_weight(Q_PROJ)
    assert weight is not None
    assert weight.codes[3, 8:16].tolist() == [-7, -6, -5, -4, -3, -2, -1, 7]
    assert weight.symmetric


def test_groups_say_whether_inputs_are_scattered(tiny_checkpoint: Factory) -> None:
    plain = Published(tiny_checkpoint("llama"), symmetric=True, act_order=False)
    assert set(open_checkpoint(str(plain.folder)).input_groups.values()) == {InputGroups(size=32)}
    plain.folder.rename(plain.folder.with_name("plain"))
    scattered = Published(tiny_checkpoint("llama"), symmetric=True, act_order=True)
    checkpoint = open_checkpoint(str(scattered.folder))
    assert set(checkpoint.input_groups.values()) == {InputGroups(size=32, act_order=True)}
    assert checkpoint.input_groups.keys() == linear_modules(checkpoint.config).keys()


def test_it_is_served_as_w4_beside_its_source(tiny_checkpoint: Factory) -> None:
    source = tiny_checkpoint("qwen2", tie_word_embeddings=True)
    published = Published(source, symmetric=False, act_order=True)
    full = open_checkpoint(str(source))
    variants = load_variants(
        open_checkpoint(str(published.folder)),
        variants=("w4", "fp16"),
        dtype=torch.float32,
        device=torch.device("cpu"),
        full_precision=full,
    )
    down = variants["w4"].layers[1].down.weight
    assert torch.equal(down, published.grids[DOWN].weights())
    bias = variants["w4"].layers[0].qkv.bias
    assert bias is not None
    assert torch.equal(bias[:64], full.tensor(f"{Q_PROJ}.bias"))
    assert variants["w4"].head.weight is variants["w4"].embedding


def test_modules_may_stay_dense(published: Published) -> None:
    dense = torch.randn(64, 64)

    def replace(tensors: dict[str, Any]) -> None:
        for part in ("qweight", "qzeros", "scales", "g_idx"):
            del tensors[f"{Q_PROJ}.{part}"]
        tensors[f"{Q_PROJ}.weight"] = dense

    edit_tensors(published.folder / "model.safetensors", replace)
    edit_config(published.folder, lambda c: c["quantization_config"].update(dynamic={"-:.*q_proj": {}}))
    checkpoint = open_checkpoint(str(published.folder))
    assert checkpoint.quantized_weight(Q_PROJ) is None
    assert torch.equal(checkpoint.tensor(f"{Q_PROJ}.weight"), dense)


def test_a_quantised_head_comes_dequantised(tiny_checkpoint: Factory, published: Published) -> None:
    checkpoint = open_checkpoint(str(published.folder))
    grid = random_grid(
        checkpoint.shapes["lm_head.weight"], seed=9, group_size=32, symmetric=True, act_order=False
    )

    def replace(tensors: dict[str, Any]) -> None:
        del tensors["lm_head.weight"]
        tensors |= {f"lm_head.{k}": v for k, v in gptq_tensors(grid, bits=4, version=1).items()}

    edit_tensors(published.folder / "model.safetensors", replace)
    assert torch.equal(open_checkpoint(str(published.folder)).tensor("lm_head.weight"), grid.weights())


def test_biases_of_zeros_that_the_model_does_not_have_are_left_out(published: Published) -> None:
    edit_tensors(
        published.folder / "model.safetensors", lambda t: t.update({f"{Q_PROJ}.bias": torch.zeros(64)})
    )
    assert f"{Q_PROJ}.bias" not in open_checkpoint(str(published.folder)).shapes
    edit_tensors(published.folder / "model.safetensors", lambda t: t[f"{Q_PROJ}.bias"].add_(1))
    with pytest.raises(CheckpointError, match=rf"{Q_PROJ}\.bias is not zero, but the model has no such bias"):
        open_checkpoint(str(published.folder))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bits": 3}, "bits 3"),
        ({"bits": 2}, "bits 2"),
        ({"bits": None}, "bits None"),
        ({"group_size": 0}, "group_size 0"),
        ({"group_size": "128"}, "group_size '128'"),
        ({"checkpoint_format": "marlin"}, "checkpoint_format 'marlin'"),
        ({"is_marlin_format": True}, "is_marlin_format"),
        ({"pack_dtype": "int16"}, "pack_dtype 'int16'"),
        ({"dynamic": {"+:.*down_proj": {"bits": 8}}}, "dynamic settings for some modules"),
    ],
)
def test_variants_of_the_format_are_refused_by_name(
    published: Published, change: dict[str, Any], message: str
) -> None:
    edit_config(published.folder, lambda config: config["quantization_config"].update(change))
    with pytest.raises(CheckpointError, match=f"is GPTQ with {message}; supported are formats gptq and"):
        open_checkpoint(str(published.folder))


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (
            lambda t: t.update({f"{Q_PROJ}.qweight": torch.zeros(7, 64, dtype=torch.int32)}),
            r"qweight is I32 \(7, 64\)",
        ),
        (
            lambda t: t.update({f"{Q_PROJ}.qweight": torch.zeros(8, 64)}),
            r"qweight is F32 \(8, 64\), expected I32",
        ),
        (
            lambda t: t.update({f"{Q_PROJ}.qzeros": torch.zeros(2, 9, dtype=torch.int32)}),
            r"qzeros is I32 \(2, 9\)",
        ),
        (
            lambda t: t.update({f"{Q_PROJ}.scales": torch.ones(3, 64)}),
            r"scales is F32 \(3, 64\), expected .* \(2, 64\)",
        ),
        (lambda t: t[f"{Q_PROJ}.scales"].fill_(float("nan")), rf"{Q_PROJ}\.scales holds NaN"),
        (lambda t: t[f"{Q_PROJ}.g_idx"].fill_(2), "g_idx names groups 2 to 2, but there are 2"),
        (lambda t: t[f"{Q_PROJ}.g_idx"].fill_(-1), "g_idx names groups -1 to -1"),
        (
            lambda t: t.update({f"{Q_PROJ}.g_idx": torch.zeros(63, dtype=torch.int32)}),
            r"g_idx is I32 \(63,\)",
        ),
        (lambda t: t.pop(f"{Q_PROJ}.qzeros"), rf"tensor {Q_PROJ}\.qzeros is not in"),
        (lambda t: t.pop(f"{Q_PROJ}.qweight"), rf"missing {Q_PROJ}\.weight"),
        (
            lambda t: t[f"{Q_PROJ}.qzeros"].fill_(-1),
            "qzeros stores a zero point of 15 in GPTQ's first version",
        ),
        (
            lambda t: t.update({"other.qweight": torch.zeros(8, 64, dtype=torch.int32)}),
            "other is quantised, but is no",
        ),
        (
            lambda t: t.update({f"{Q_PROJ}.scales": torch.ones(2, 64, dtype=torch.bfloat16)}),
            "scales are of types bfloat16, float16",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_named(
    published: Published, edit: Callable[[dict[str, Any]], None], message: str
) -> None:
    edit_tensors(published.folder / "model.safetensors", edit)
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(str(published.folder))


def test_act_order_without_an_index_is_refused(published: Published) -> None:
    edit_tensors(published.folder / "model.safetensors", lambda t: t.pop(f"{Q_PROJ}.g_idx"))
    edit_config(published.folder, lambda config: config["quantization_config"].update(desc_act=True))
    with pytest.raises(CheckpointError, match=rf"tensor {Q_PROJ}\.g_idx is not in"):
        open_checkpoint(str(published.folder))


def test_outputs_that_do_not_fill_a_word_are_refused(tiny_checkpoint: Factory) -> None:
    source = tiny_checkpoint("llama", intermediate_size=100)
    folder = publish(
        source,
        source.parent / "gptq",
        {"quant_method": "gptq", "bits": 4, "group_size": -1},
        lambda module, weight: (
            {"qweight": torch.zeros(8, 100, dtype=torch.int32)} if "up_proj" in module else {}
        ),
    )
    with pytest.raises(CheckpointError, match="is 100 by 64; GPTQ stores whole words of 8 codes only"):
        open_checkpoint(str(folder))


def test_a_folder_without_quantised_modules_is_refused(tiny_checkpoint: Factory) -> None:
    folder = tiny_checkpoint("llama")
    settings = {"quant_method": "gptq", "bits": 4, "group_size": 32}
    edit_config(folder, lambda config: config.update(quantization_config=settings))
    with pytest.raises(CheckpointError, match="says that it is quantised, but holds no quantised module"):
        open_checkpoint(str(folder))
