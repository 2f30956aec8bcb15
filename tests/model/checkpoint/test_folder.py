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

Factory = Callable[..., Path]


def change_tensors(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "mistral"])
@pytest.mark.parametrize("tied", [True, False])
def test_every_parameter_that_transformers_wrote_is_there(
    tiny_checkpoint: Factory, architecture: str, tied: bool
) -> None:
    folder = tiny_checkpoint(architecture, tie_word_embeddings=tied)
    model = AutoModelForCausalLM.from_pretrained(folder)
    checkpoint = open_checkpoint(str(folder))
    for name, parameter in model.named_parameters():
        assert torch.equal(checkpoint.tensor(name), parameter), name
    assert checkpoint.config.tie_word_embeddings == tied
    assert checkpoint.stored_bytes == sum(parameter.nbytes for parameter in model.parameters())
    assert checkpoint.variants == ("fp16",)
    assert checkpoint.weight_dtype == "float32"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_weight_type_is_what_the_file_holds(tiny_checkpoint: Factory, dtype: str) -> None:
    checkpoint = open_checkpoint(str(tiny_checkpoint("llama", dtype=dtype)))
    assert checkpoint.weight_dtype == dtype
    assert checkpoint.tensor("model.norm.weight").dtype == getattr(torch, dtype)


def test_shards_are_read_as_one_checkpoint(tiny_checkpoint: Factory, tmp_path: Path) -> None:
    folder = tiny_checkpoint("qwen2")
    sharded = tmp_path / "sharded"
    AutoModelForCausalLM.from_pretrained(folder).save_pretrained(sharded, max_shard_size="50KB")
    assert len(list(sharded.glob("*.safetensors"))) > 1
    one, several = open_checkpoint(str(folder)), open_checkpoint(str(sharded))
    assert several.shapes == one.shapes
    for name in one.shapes:
        assert torch.equal(one.tensor(name), several.tensor(name))


def test_tensors_stay_valid_after_closing(tiny_checkpoint: Factory) -> None:
    checkpoint = open_checkpoint(str(tiny_checkpoint("llama")))
    norm = checkpoint.tensor("model.norm.weight")
    before = norm.clone()
    checkpoint.close()
    assert torch.equal(norm, before)


def test_the_revision_changes_with_any_weight_and_with_nothing_else(tiny_checkpoint: Factory) -> None:
    first, same, other = (tiny_checkpoint("llama", seed=seed) for seed in (0, 0, 1))
    revision = open_checkpoint(str(first)).revision
    assert revision.startswith("sha256:")
    assert open_checkpoint(str(same)).revision == revision
    assert open_checkpoint(str(other)).revision != revision


def test_a_folder_without_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no config\.json; give the folder of a whole checkpoint"):
        open_checkpoint(str(tmp_path))


def test_a_path_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointError, match=r"does not exist; give a model folder, a \.gguf file or a hub id"
    ):
        open_checkpoint(str(tmp_path / "nothing"))


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"x")
    with pytest.raises(CheckpointError, match=r"is a file but no \.gguf"):
        open_checkpoint(str(tmp_path / "model.bin"))


@pytest.mark.parametrize("text", ["{", "[]", ""])
def test_a_config_that_is_no_json_object_is_refused(tiny_checkpoint: Factory, text: str) -> None:
    folder = tiny_checkpoint("llama")
    (folder / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        open_checkpoint(str(folder))


@pytest.mark.parametrize("kept", [0, 4, 100, 20_000])
def test_a_truncated_file_is_named_with_its_size(tiny_checkpoint: Factory, kept: int) -> None:
    folder = tiny_checkpoint("llama")
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(
        CheckpointError, match=rf"model\.safetensors \({kept} bytes\) is truncated or damaged"
    ):
        open_checkpoint(str(folder))


def test_a_folder_without_weights_is_refused(tiny_checkpoint: Factory) -> None:
    folder = tiny_checkpoint("llama")
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"has no model\.safetensors"):
        open_checkpoint(str(folder))
    (folder / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(CheckpointError, match="convert them to safetensors"):
        open_checkpoint(str(folder))


def test_a_missing_shard_is_named(tiny_checkpoint: Factory, tmp_path: Path) -> None:
    folder = tmp_path / "sharded"
    model = AutoModelForCausalLM.from_pretrained(tiny_checkpoint("llama"))
    model.save_pretrained(folder, max_shard_size="50KB")
    shard = sorted(folder.glob("*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(CheckpointError, match=f"{shard.name} is missing"):
        open_checkpoint(str(folder))


def test_missing_tensors_are_named(tiny_checkpoint: Factory) -> None:
    folder = tiny_checkpoint("llama")
    change_tensors(folder, lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"))
    with pytest.raises(CheckpointError, match=r"missing model\.layers\.1\.mlp\.up_proj\.weight\. Download"):
        open_checkpoint(str(folder))


def test_a_wrong_shape_is_named_with_what_was_expected(tiny_checkpoint: Factory) -> None:
    folder = tiny_checkpoint("llama")
    change_tensors(folder, lambda t: t.update({"model.norm.weight": torch.ones(65)}))
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight has shape \(65,\), expected \(64,\)"):
        open_checkpoint(str(folder))


def test_a_tensor_that_the_decoder_would_ignore_is_refused(tiny_checkpoint: Factory) -> None:
    folder = tiny_checkpoint("llama")
    name = "model.layers.0.self_attn.q_proj.bias"
    change_tensors(folder, lambda tensors: tensors.update({name: torch.ones(64)}))
    with pytest.raises(CheckpointError, match="is not part of a llama model"):
        open_checkpoint(str(folder))


def test_stored_rotary_frequencies_and_a_repeated_tied_head_are_harmless(tiny_checkpoint: Factory) -> None:
    folder = tiny_checkpoint("llama", tie_word_embeddings=True)

    def add(tensors: dict[str, Any]) -> None:
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()

    change_tensors(folder, add)
    assert open_checkpoint(str(folder)).config.tie_word_embeddings


def test_another_head_than_the_embedding_that_it_is_tied_to_is_refused(tiny_checkpoint: Factory) -> None:
    folder = tiny_checkpoint("llama", tie_word_embeddings=True)
    change_tensors(folder, lambda t: t.update({"lm_head.weight": -t["model.embed_tokens.weight"]}))
    with pytest.raises(CheckpointError, match=r"stores lm_head\.weight, which differs .* set tie_word"):
        open_checkpoint(str(folder))


@pytest.mark.parametrize("part", ["layers.0.self_attn.q_proj", "layers.1.mlp.down_proj", "embed_tokens"])
def test_eight_bit_floats_are_refused_by_name(tiny_checkpoint: Factory, part: str) -> None:
    folder = tiny_checkpoint("llama")
    name = f"model.{part}.weight"
    change_tensors(folder, lambda t: t.update({name: t[name].to(torch.float8_e4m3fn)}))
    with pytest.raises(CheckpointError, match=rf"tensor {name} is of type F8_E4M3; supported are float16"):
        open_checkpoint(str(folder))


@pytest.mark.parametrize("method", ["fp8", "bitsandbytes"])
def test_other_quantisations_are_refused_with_the_remedy(tiny_checkpoint: Factory, method: str) -> None:
    folder = tiny_checkpoint("llama")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": method}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=f"quantised with '{method}'.*spearhead quantize"):
        open_checkpoint(str(folder))
