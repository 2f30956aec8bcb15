import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from spearhead.errors import CheckpointError
from spearhead.model.checkpoint import open_checkpoint
from tests.model.checkpoint.published import edit_config, edit_tensors

Factory = Callable[..., Path]
Q_PROJ, K_PROJ = "model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.k_proj"


@pytest.fixture
def artefact(tiny_checkpoint: Factory, tiny_artefact: Factory) -> Path:
    return tiny_artefact(tiny_checkpoint("llama", dtype="bfloat16"))


def test_it_offers_full_precision_while_its_source_is_there(artefact: Path, caplog: Any) -> None:
    assert open_checkpoint(str(artefact)).variants == ("w4", "fp16")
    edit_config(artefact, lambda config: config["spear"].update(full_precision="../gone"))
    moved = open_checkpoint(str(artefact))
    assert moved.variants == ("w4",)
    assert "was made from ../gone, which is not here: variant fp16 is not offered" in caplog.text


def test_weights_of_another_producer_are_read(artefact: Path) -> None:
    expected = open_checkpoint(str(artefact)).tensor(f"{Q_PROJ}.weight")
    edit_config(artefact, lambda config: config.pop("spear"))
    checkpoint = open_checkpoint(str(artefact))
    assert checkpoint.quantization == "w4 symmetric, group 32"
    assert checkpoint.variants == ("w4",)
    assert torch.equal(checkpoint.tensor(f"{Q_PROJ}.weight"), expected)


def test_modules_that_were_left_unquantised_are_read_as_they_are(artefact: Path) -> None:
    dense = torch.randn(64, 64).to(torch.bfloat16)

    def replace(tensors: dict[str, Any]) -> None:
        for part in ("packed", "scale", "shape"):
            del tensors[f"{Q_PROJ}.weight_{part}"]
        tensors[f"{Q_PROJ}.weight"] = dense

    edit_tensors(artefact / "model.safetensors", replace)
    assert torch.equal(open_checkpoint(str(artefact)).tensor(f"{Q_PROJ}.weight"), dense)


def test_negative_scales_are_read(artefact: Path) -> None:
    before = open_checkpoint(str(artefact)).tensor(f"{Q_PROJ}.weight")
    edit_tensors(artefact / "model.safetensors", lambda tensors: tensors[f"{Q_PROJ}.weight_scale"].neg_())
    assert torch.equal(open_checkpoint(str(artefact)).tensor(f"{Q_PROJ}.weight"), -before)


def test_a_scale_that_is_not_finite_is_named(artefact: Path) -> None:
    edit_tensors(artefact / "model.safetensors", lambda t: t[f"{Q_PROJ}.weight_scale"].fill_(float("inf")))
    with pytest.raises(CheckpointError, match=rf"{Q_PROJ}\.weight_scale holds NaN or infinity"):
        open_checkpoint(str(artefact)).tensor(f"{Q_PROJ}.weight")


def test_scales_that_do_not_fit_the_weights_are_named(artefact: Path) -> None:
    scales = torch.ones(64, 3, dtype=torch.bfloat16)
    edit_tensors(artefact / "model.safetensors", lambda t: t.update({f"{Q_PROJ}.weight_scale": scales}))
    with pytest.raises(CheckpointError, match=r"weight_scale is BF16 \(64, 3\), expected .* \(64, 2\)"):
        open_checkpoint(str(artefact)).tensor(f"{Q_PROJ}.weight")


def test_packed_weights_of_another_width_are_named(artefact: Path) -> None:
    packed = torch.zeros(64, 7, dtype=torch.int32)
    edit_tensors(artefact / "model.safetensors", lambda t: t.update({f"{Q_PROJ}.weight_packed": packed}))
    with pytest.raises(CheckpointError, match=r"weight_packed is I32 \(64, 7\), expected I32 \(64, 8\)"):
        open_checkpoint(str(artefact))


def test_truncated_weights_are_named(artefact: Path) -> None:
    path = artefact / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="is truncated or damaged"):
        open_checkpoint(str(artefact))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_bits": 3}, "num_bits 3"),
        ({"symmetric": None}, "symmetric None"),
        ({"type": "float"}, "type 'float'"),
        ({"strategy": "block"}, "strategy 'block'"),
        ({"strategy": "group", "group_size": 0}, "group_size 0"),
        ({"actorder": "random"}, "actorder 'random'"),
        ({"dynamic": True}, "dynamic True"),
    ],
)
def test_weights_of_another_kind_are_refused(artefact: Path, change: dict[str, Any], message: str) -> None:
    edit_config(
        artefact, lambda c: c["quantization_config"]["config_groups"]["group_0"]["weights"].update(change)
    )
    with pytest.raises(
        CheckpointError, match=f"has {message}; supported is pack-quantized with 4-bit or 8-bit"
    ):
        open_checkpoint(str(artefact))


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda q: q.update(format="float-quantized"), "format 'float-quantized'"),
        (lambda q: q["config_groups"]["group_0"].update(format="marlin-24"), "format 'marlin-24'"),
        (lambda q: q.update(config_groups=[]), r"config_groups is \[\]; a table"),
        (lambda q: q["config_groups"]["group_0"].update(targets="Linear"), "must be lists of names"),
        (lambda q: q["config_groups"]["group_0"].update(targets=["re:("]), "is no regular expression"),
        (lambda q: q.update(sparsity_config={"format": "sparse-24"}), "a sparsity_config"),
        (lambda q: q.update(transform_config={"config_groups": {"R1": {}}}), "a transform_config"),
        (lambda q: q.update(kv_cache_scheme={"num_bits": 8}), "a quantised KV cache"),
        (lambda q: q["config_groups"]["group_0"].update(input_activations={}), "quantised activations"),
    ],
)
def test_more_than_quantised_weights_is_refused(
    artefact: Path, edit: Callable[[dict[str, Any]], None], message: str
) -> None:
    edit_config(artefact, lambda config: edit(config["quantization_config"]))
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(str(artefact))


def test_compensators_add_a_variant_and_change_the_revision(artefact: Path, add_compensators: Any) -> None:
    plain = open_checkpoint(str(artefact))
    assert plain.compensators is None
    add_compensators(artefact, {Q_PROJ: (64, 64, 4, 4), K_PROJ: (32, 64, 2, 0)})
    checkpoint = open_checkpoint(str(artefact))
    assert checkpoint.variants == ("w4", "w4+ec", "fp16")
    assert checkpoint.revision != plain.revision
    assert checkpoint.compensators is not None
    by_module = checkpoint.compensators.by_module
    assert set(by_module) == {Q_PROJ, K_PROJ}
    assert by_module[K_PROJ].gate is None
    assert by_module[Q_PROJ].gate is not None
    assert checkpoint.compensators.stored_bytes == 2 * (4 * 128 + (4 * 4 + 4) * 2 + 2 * 96)


def test_transformers_ignores_compensators(artefact: Path, add_compensators: Any) -> None:
    add_compensators(artefact, {Q_PROJ: (64, 64, 4, 4)})
    model = AutoModelForCausalLM.from_pretrained(artefact)
    assert model.config.spear["ec_file"] == "spear/ec.safetensors"


def files_that_vllm_loads(folder: Path) -> set[str]:
    """Safetensors in the folder itself, cut down to what the index names if there is an index."""
    found = {path.name for path in folder.glob("*.safetensors")}
    index = folder / "model.safetensors.index.json"
    if index.exists():
        found &= set(json.loads(index.read_text())["weight_map"].values())
    return found


@pytest.mark.parametrize("sharded", [False, True])
def test_vllm_finds_the_weights_and_nothing_else(
    artefact: Path, add_compensators: Any, sharded: bool
) -> None:
    expected = {"model.safetensors"}
    if sharded:
        expected = split(artefact)
    add_compensators(artefact, {Q_PROJ: (64, 64, 4, 4)})
    assert files_that_vllm_loads(artefact) == expected
    assert set(open_checkpoint(str(artefact)).weight_digests) == expected
    # That name switches vLLM to Mistral's own layout, and PyTorch's would be loaded as weights.
    names = [path.name for path in artefact.rglob("*")]
    assert not [name for name in names if name.startswith("consolidated") or name.endswith((".bin", ".pt"))]


def split(folder: Path) -> set[str]:
    """Makes two shards and an index of one file."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    weight_map = {name: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, name in enumerate(tensors)}
    for shard in set(weight_map.values()):
        part = {name: tensor for name, tensor in tensors.items() if weight_map[name] == shard}
        save_file(part, folder / shard, metadata={"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return set(weight_map.values())


def test_compensators_of_other_weights_are_refused(artefact: Path, add_compensators: Any) -> None:
    add_compensators(artefact, {Q_PROJ: (64, 64, 4, 0)})
    edit_tensors(artefact / "model.safetensors", lambda tensors: tensors[f"{Q_PROJ}.weight_scale"].mul_(2))
    with pytest.raises(
        CheckpointError, match=r"fitted to other 4-bit weights \(SHA-256 differs\).*Calibrate"
    ):
        open_checkpoint(str(artefact))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 3}, "is of version 3; this software reads 1 and 2"),
        ({"quantization": "w4 symmetric, per channel, absmax/7"}, "per channel, absmax/7', the weights are"),
    ],
)
def test_compensators_of_another_version_or_quantiser_are_refused(
    artefact: Path, add_compensators: Any, changes: dict[str, Any], message: str
) -> None:
    add_compensators(artefact, {Q_PROJ: (64, 64, 4, 0)}, **changes)
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(str(artefact))


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        (
            {"model.layers.9.mlp.up_proj": (96, 64, 4, 0)},
            "corrects model.layers.9.mlp.up_proj, which the model",
        ),
        (
            {Q_PROJ: (64, 65, 4, 0)},
            r"ec\.A has shape \(4, 65\); expected \(rank, 64\)",
        ),
        ({Q_PROJ: (63, 64, 4, 0)}, r"ec\.B has shape \(63, 4\); expected \(64, rank\)"),
    ],
)
def test_compensators_that_do_not_fit_the_model_are_refused(
    artefact: Path, add_compensators: Any, modules: dict[str, tuple[int, int, int, int]], message: str
) -> None:
    add_compensators(artefact, modules)
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(str(artefact))


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (
            lambda t: t.update({f"{Q_PROJ}.ec.gate.w2": torch.ones(4, 3)}),
            r"ec\.gate\.w2 is F32 \(4, 3\), expected .* \(4, 4\)",
        ),
        (lambda t: t.pop(f"{Q_PROJ}.ec.gate.b2"), rf"tensor {Q_PROJ}\.ec\.gate\.b2 is not in"),
        (lambda t: t[f"{Q_PROJ}.ec.A"].fill_(float("nan")), "of the compensators holds NaN"),
    ],
)
def test_damaged_compensators_are_named(
    artefact: Path, add_compensators: Any, edit: Callable[[dict[str, Any]], None], message: str
) -> None:
    add_compensators(artefact, {Q_PROJ: (64, 64, 4, 4)})
    edit_tensors(artefact / "spear" / "ec.safetensors", edit)
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(str(artefact))


def test_named_compensators_that_are_missing_are_an_error(artefact: Path, add_compensators: Any) -> None:
    add_compensators(artefact, {Q_PROJ: (64, 64, 4, 4)})
    (artefact / "spear" / "ec.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"ec\.safetensors is missing"):
        open_checkpoint(str(artefact))


def test_an_early_name_of_the_quantisation_is_refused_with_the_remedy(artefact: Path) -> None:
    edit_config(artefact, lambda c: c.update(compression_config=c.pop("quantization_config")))
    with pytest.raises(CheckpointError, match=r"has compression_config.* rename it to quantization_config"):
        open_checkpoint(str(artefact))


def test_a_source_that_is_no_name_is_refused(artefact: Path) -> None:
    edit_config(artefact, lambda config: config["spear"].update(full_precision=5))
    with pytest.raises(CheckpointError, match=r"spear\.full_precision in config\.json is 5; a path"):
        open_checkpoint(str(artefact)).variants  # noqa: B018 (looks it up)


def test_a_dense_tensor_of_another_type_is_named_when_opening(artefact: Path) -> None:
    name = "model.layers.1.input_layernorm.weight"
    eight = torch.float8_e4m3fn
    edit_tensors(artefact / "model.safetensors", lambda t: t.update({name: t[name].to(eight)}))
    with pytest.raises(CheckpointError, match=f"tensor {name} is of type F8_E4M3"):
        open_checkpoint(str(artefact))
