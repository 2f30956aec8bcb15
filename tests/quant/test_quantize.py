import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from spearhead.errors import CheckpointError, ConfigError
from spearhead.model.checkpoint import open_checkpoint
from spearhead.model.checkpoint.layout import linear_modules
from spearhead.model.quantization import QuantizationScheme, dequantize, rtn
from spearhead.quant import QuantizationProgress, RunSettings, quantize_checkpoint
from spearhead.tokenizer import Tokenizer

Factory = Callable[..., Path]
SHAPES: dict[str, dict[str, Any]] = {
    "llama": {"tie_word_embeddings": True},
    "qwen2": {"tie_word_embeddings": False},
    "qwen3": {},
    "mistral": {"sliding_window": 16},
}


def scheme(text: str = "group32") -> QuantizationScheme:
    return QuantizationScheme.parse(text)


def reference_model(folder: Path, text: str, dtype: torch.dtype) -> Any:
    """transformers' model of the source with every linear replaced by its round-to-nearest weights."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    for name in linear_modules(open_checkpoint(str(folder)).config):
        module = model.get_submodule(name)
        codes, scales = rtn(module.weight.detach(), scheme(text), dtype)
        module.weight.data = dequantize(codes, scales).to(dtype)
    return model.eval()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("text", ["group32", "channel", "tensor"])
@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_transformers_loads_the_artefact_with_identical_logits(
    tiny_checkpoint: Factory, tmp_path: Path, architecture: str, text: str, dtype: str
) -> None:
    folder = tiny_checkpoint(architecture, dtype=dtype, **SHAPES[architecture])
    quantize_checkpoint(str(folder), tmp_path / "w4", scheme(text))
    tokens = torch.arange(3, 40)[None]
    with torch.inference_mode():
        theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "w4", dtype=getattr(torch, dtype)).eval()
        expected = reference_model(folder, text, getattr(torch, dtype))(tokens).logits
        assert torch.equal(theirs(tokens).logits, expected)


@pytest.mark.parametrize("text", ["group32", "channel/7", "tensor/8"])
@pytest.mark.parametrize("architecture", SHAPES)
def test_the_artefact_reads_back_as_what_was_computed(
    tiny_checkpoint: Factory, tmp_path: Path, architecture: str, text: str
) -> None:
    folder = tiny_checkpoint(architecture, dtype="bfloat16", **SHAPES[architecture])
    quantize_checkpoint(str(folder), tmp_path / "w4", scheme(text))
    source, artefact = open_checkpoint(str(folder)), open_checkpoint(str(tmp_path / "w4"))
    assert artefact.config == source.config
    assert artefact.shapes.keys() == source.shapes.keys()
    assert artefact.weight_dtype == "bfloat16"
    assert artefact.quantization == scheme(text).description
    modules = linear_modules(source.config)
    for name in source.shapes:
        original = source.tensor(name)
        if name.removesuffix(".weight") in modules:
            original = dequantize(*rtn(original, scheme(text), torch.bfloat16))
        assert torch.equal(artefact.tensor(name), original), name


def test_the_report_tells_the_bytes_on_disk(tiny_checkpoint: Factory, tmp_path: Path) -> None:
    folder = tiny_checkpoint("qwen2", dtype="float16")
    report = quantize_checkpoint(str(folder), tmp_path / "w4", scheme())
    tensors = load_file(tmp_path / "w4" / "model.safetensors")
    assert report.artefact_bytes == sum(tensor.nbytes for tensor in tensors.values())
    assert report.artefact_bytes == open_checkpoint(str(tmp_path / "w4")).stored_bytes
    assert report.source_bytes == open_checkpoint(str(folder)).stored_bytes
    assert report.module_count == 14
    assert 0.05 < report.relative_error < 0.15


def test_progress_goes_up_to_the_whole_and_names_tensors(tiny_checkpoint: Factory, tmp_path: Path) -> None:
    seen: list[QuantizationProgress] = []
    quantize_checkpoint(str(tiny_checkpoint("llama")), tmp_path / "w4", scheme(), progress=seen.append)
    done = [progress.done_bytes for progress in seen]
    assert done == sorted(done)
    assert done[-1] == seen[-1].total_bytes
    assert seen[0].tensor == "model.embed_tokens.weight"


def test_a_large_artefact_is_written_in_shards(tiny_checkpoint: Factory, tmp_path: Path) -> None:
    folder = tiny_checkpoint("llama")
    quantize_checkpoint(str(folder), tmp_path / "one", scheme())
    quantize_checkpoint(str(folder), tmp_path / "many", scheme(), settings=RunSettings(shard_bytes=50_000))
    assert len(list((tmp_path / "many").glob("model-*-of-*.safetensors"))) > 1
    one, many = open_checkpoint(str(tmp_path / "one")), open_checkpoint(str(tmp_path / "many"))
    for name in one.shapes:
        assert torch.equal(one.tensor(name), many.tensor(name))
    AutoModelForCausalLM.from_pretrained(tmp_path / "many")


def test_the_tokenizer_and_generation_settings_come_along(tiny_checkpoint: Factory, tmp_path: Path) -> None:
    folder = tiny_checkpoint("llama")
    (folder / "generation_config.json").write_text('{"eos_token_id": [2, 7]}')
    quantize_checkpoint(str(folder), tmp_path / "w4", scheme())
    assert Tokenizer.load(tmp_path / "w4").hash == Tokenizer.load(folder).hash
    assert open_checkpoint(str(tmp_path / "w4")).config.eos_token_ids == (2, 7)


def test_a_gguf_file_becomes_a_folder_that_transformers_loads(
    tiny_checkpoint: Factory, tiny_gguf: Factory, tmp_path: Path
) -> None:
    path = tiny_gguf(tiny_checkpoint("llama", tie_word_embeddings=True), "Q8_0")
    quantize_checkpoint(str(path), tmp_path / "w4", scheme())
    artefact = open_checkpoint(str(tmp_path / "w4"))
    assert artefact.weight_dtype == "float16"
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "w4", dtype=torch.float16).eval()
    embedding = open_checkpoint(str(path)).tensor("model.embed_tokens.weight").half()
    assert torch.equal(model.get_input_embeddings().weight, embedding)
    ids = Tokenizer.load(path).encode("The quick brown fox")
    assert AutoTokenizer.from_pretrained(tmp_path / "w4").encode("The quick brown fox") == ids
    assert Tokenizer.load(tmp_path / "w4").hash == Tokenizer.load(path).hash


def test_the_artefact_names_its_source_by_a_relative_path(tiny_checkpoint: Factory, tmp_path: Path) -> None:
    folder = tiny_checkpoint("llama")
    quantize_checkpoint(str(folder), tmp_path / "made" / "w4", scheme())
    config = json.loads((tmp_path / "made" / "w4" / "config.json").read_text())
    assert config["spear"] == {
        "version": 1,
        "quantization": "w4 symmetric, group 32, absmax/7.5",
        "full_precision": f"../../{folder.name}",
        "full_precision_revision": open_checkpoint(str(folder)).revision,
    }


def test_an_existing_output_is_refused_and_untouched(tiny_checkpoint: Factory, tmp_path: Path) -> None:
    (tmp_path / "w4").mkdir()
    (tmp_path / "w4" / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="exists; remove it or choose another output folder"):
        quantize_checkpoint(str(tiny_checkpoint("llama")), tmp_path / "w4", scheme())
    assert [path.name for path in (tmp_path / "w4").iterdir()] == ["notes.txt"]


def test_a_failed_run_leaves_nothing_behind(tiny_checkpoint: Factory, tmp_path: Path) -> None:
    folder = tiny_checkpoint("llama")
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][0, 0] = float("nan")
    save_file(tensors, folder / "model.safetensors")
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(
        CheckpointError, match=r"model\.layers\.1\.mlp\.up_proj\.weight holds NaN or infinity"
    ):
        quantize_checkpoint(str(folder), tmp_path / "w4", scheme())
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_all_modules_that_a_group_does_not_divide_are_listed(
    tiny_checkpoint: Factory, tmp_path: Path
) -> None:
    folder = tiny_checkpoint("llama", intermediate_size=80)
    with pytest.raises(
        CheckpointError,
        match=r"group size 32 does not divide the inputs of mlp\.down_proj \(K = 80\) in each of 2 layers; "
        "use channel",
    ):
        quantize_checkpoint(str(folder), tmp_path / "w4", scheme("group32"))
    with pytest.raises(CheckpointError, match=r"self_attn\.q_proj \(K = 64\), .*mlp\.down_proj.*use channel"):
        quantize_checkpoint(str(folder), tmp_path / "w4", scheme("group128"))


def test_quantising_twice_is_refused(tiny_checkpoint: Factory, tmp_path: Path) -> None:
    quantize_checkpoint(str(tiny_checkpoint("llama")), tmp_path / "w4", scheme())
    with pytest.raises(CheckpointError, match="is quantised already"):
        quantize_checkpoint(str(tmp_path / "w4"), tmp_path / "w2", scheme())


def test_weights_beyond_the_range_of_the_stored_type_are_named(
    tiny_checkpoint: Factory, tiny_gguf: Factory, tmp_path: Path
) -> None:
    folder = tiny_checkpoint("llama")
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"][0, 0] = 1e6
    save_file(tensors, folder / "model.safetensors")
    path = tiny_gguf(folder, "BF16")
    assert quantize_checkpoint(str(path), tmp_path / "wide", scheme()).module_count == 14
    path = tiny_gguf(folder, "Q8_0")
    with pytest.raises(CheckpointError, match=r"lm_head\.weight holds NaN or infinity"):
        quantize_checkpoint(str(path), tmp_path / "narrow", scheme())
