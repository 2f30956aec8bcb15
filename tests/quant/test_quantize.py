import json
from collections.abc import Callable, Iterator
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
from spearhead.quant import (
    MethodOptions,
    QuantizationProgress,
    QuantizationRecipe,
    RunSettings,
    quantize_checkpoint,
)
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


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Matrices of tiny models take longer to hand out than to multiply."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


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


def unpacked(words: torch.Tensor, shape: list[int], bits: int) -> torch.Tensor:
    """Codes by the definition: ``32 / bits`` a word, lowest bits first, stored as code + half the range."""
    count = 32 // bits
    codes = torch.empty(shape[0], words.shape[1] * count)
    for place in range(count):
        codes[:, place::count] = ((words.to(torch.int64) >> (bits * place)) & (2**bits - 1)).float()
    return codes[:, : shape[1]] - 2 ** (bits - 1)


def dequantized(artefact: Path) -> dict[str, torch.Tensor]:
    """The artefact's tensors, dequantised by the definition."""
    tensors = load_file(artefact / "model.safetensors")
    dense = {name: value for name, value in tensors.items() if "proj.weight_" not in name}
    for name in tensors:
        if name.endswith("weight_packed"):
            module = name.removesuffix("_packed")
            shape, scales = tensors[f"{module}_shape"].tolist(), tensors[f"{module}_scale"].float()
            codes = unpacked(tensors[name], shape, 32 * tensors[name].shape[1] // shape[1])
            dense[module] = codes * scales.repeat_interleave(shape[1] // scales.shape[1], dim=1)
    return dense


def dense_twin(artefact: Path, dtype: torch.dtype) -> Any:
    """transformers' full-precision model with the artefact's tensors."""
    config = json.loads((artefact / "config.json").read_text())
    del config["quantization_config"], config["spear"]
    twin = artefact.with_name(f"{artefact.name}-dense")
    twin.mkdir()
    (twin / "config.json").write_text(json.dumps(config))
    tensors = {name: tensor.to(dtype) for name, tensor in dequantized(artefact).items()}
    save_file(tensors, twin / "model.safetensors", metadata={"format": "pt"})
    return AutoModelForCausalLM.from_pretrained(twin, dtype=dtype).eval()


RECIPES = {
    "rtn-clip": ("tensor", "rtn-clip", []),
    "unweighted": ("group32", "rtn-clip-unweighted", []),
    "gptq": ("channel", "gptq", []),
    "gptq-act-order": ("group32", "gptq-clip", []),
    "awq": ("channel/7", "awq", []),
    "awq-clip": ("group32", "awq-clip", []),
    "omniquant": ("channel", "omniquant", []),
    "w8": ("w8", "rtn", []),
    "w8-gptq": ("w8", "gptq", []),
    "mixed": (
        "channel",
        "gptq",
        [
            "re:.*down_proj=group32",
            "model.layers.0.*=w8",
            "*1.self_attn.o_proj=dense",
            "*0.mlp.up_proj=tensor/8",
        ],
    ),
    "dense-by-pattern": ("group32", "rtn", ["*self_attn*=dense"]),
}
SEQUENCES = [list(range(3, 60)), list(range(9, 50)), list(range(70, 120))]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("kind", RECIPES)
def test_transformers_computes_every_recipe_as_its_definition_says(
    tiny_checkpoint: Factory, tmp_path: Path, kind: str, dtype: str
) -> None:
    folder = tiny_checkpoint("qwen2", dtype=dtype, num_key_value_heads=4, tie_word_embeddings=True)
    scheme_text, method, overrides = RECIPES[kind]
    options = MethodOptions(clipping_steps=5, act_order=kind == "gptq-act-order")
    recipe = QuantizationRecipe.parse(scheme_text, method, overrides, options)
    quantize_checkpoint(str(folder), tmp_path / "out", recipe, SEQUENCES)
    tokens = torch.arange(3, 60)[None]
    as_dtype = getattr(torch, dtype)
    with torch.inference_mode():
        theirs, loading = AutoModelForCausalLM.from_pretrained(
            tmp_path / "out", dtype=as_dtype, output_loading_info=True
        )
        assert not loading["missing_keys"] and not loading["unexpected_keys"]
        logits = theirs.eval()(tokens).logits
        assert torch.equal(logits, dense_twin(tmp_path / "out", as_dtype)(tokens).logits)
        ours = open_checkpoint(str(tmp_path / "out"))
        for name, tensor in dequantized(tmp_path / "out").items():
            assert torch.equal(ours.tensor(name).float(), tensor.float()), name
        # Biases are large in this model: lost or doubled ones would show.
        source = AutoModelForCausalLM.from_pretrained(folder, dtype=as_dtype).eval()
        assert torch.dist(logits, source(tokens).logits) < 0.6 * source(tokens).logits.norm()


def test_eight_bits_lose_next_to_nothing_even_with_scales_folded(
    tiny_checkpoint: Factory, tmp_path: Path
) -> None:
    folder = tiny_checkpoint("qwen2", num_key_value_heads=4)
    recipe = QuantizationRecipe.parse("channel", "rtn", ["*=w8:awq"])
    report = quantize_checkpoint(str(folder), tmp_path / "w8", recipe, SEQUENCES)
    assert max(module.weighted_error or 1 for module in report.modules) < 0.012
    folds = load_file(tmp_path / "w8" / "spear" / "folds.safetensors")
    assert "model.layers.0.self_attn.q_proj.input_scale" in folds
    tokens = torch.arange(3, 60)[None]
    with torch.inference_mode():
        logits = AutoModelForCausalLM.from_pretrained(tmp_path / "w8", dtype=torch.float32)(tokens).logits
        expected = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)(tokens).logits
        assert torch.dist(logits, expected) < 0.1 * expected.norm()


@pytest.mark.parametrize("method", ["gptq", "omniquant", "awq"])
def test_biases_are_the_sources_own_unless_scales_are_folded(
    tiny_checkpoint: Factory, tmp_path: Path, method: str
) -> None:
    folder = tiny_checkpoint("qwen2", dtype="bfloat16", num_key_value_heads=4)
    recipe = QuantizationRecipe.parse("channel", method, options=MethodOptions(clipping_steps=2))
    quantize_checkpoint(str(folder), tmp_path / "out", recipe, SEQUENCES)
    source, artefact = open_checkpoint(str(folder)), open_checkpoint(str(tmp_path / "out"))
    biases = [name for name in source.shapes if name.endswith(".bias")]
    changed = {
        name.split(".")[4] for name in biases if not torch.equal(source.tensor(name), artefact.tensor(name))
    }
    assert len(biases) == 6
    assert changed == ({"v_proj"} if method == "awq" else set())


def test_scales_beyond_the_range_of_the_stored_type_are_named(
    tiny_checkpoint: Factory, tiny_gguf: Factory, tmp_path: Path
) -> None:
    folder = tiny_checkpoint("llama")
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][0, 0] = 1e6
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    path = tiny_gguf(folder, "Q8_0")
    with pytest.raises(CheckpointError, match=r"layers\.1\.mlp\.up_proj\.weight_scale holds NaN or infinity"):
        quantize_checkpoint(str(path), tmp_path / "out", scheme("channel"))


def test_a_mixed_artefact_names_every_module_once(tiny_checkpoint: Factory, tmp_path: Path) -> None:
    folder = tiny_checkpoint("llama")
    recipe = QuantizationRecipe.parse(
        "channel", "rtn", ["*down_proj=group32", "*0.*q_proj=w8", "*v_proj=dense"]
    )
    quantize_checkpoint(str(folder), tmp_path / "mixed", recipe)
    config = json.loads((tmp_path / "mixed" / "config.json").read_text())["quantization_config"]
    named = [target for group in config["config_groups"].values() for target in group["targets"]]
    modules = list(linear_modules(open_checkpoint(str(folder)).config))
    dense = [module for module in modules if module.endswith("v_proj")]
    assert sorted(named + dense) == sorted(modules)
    assert config["ignore"] == ["lm_head", *dense]
    kinds = [(g["weights"]["num_bits"], g["weights"]["strategy"]) for g in config["config_groups"].values()]
    assert sorted(kinds) == [(4, "channel"), (4, "group"), (8, "channel")]


@pytest.mark.parametrize("method", ["gptq", "awq", "rtn-clip"])
@pytest.mark.parametrize("text", ["channel", "group32"])
def test_no_method_is_worse_than_rounding_on_the_calibration_tokens(
    tiny_checkpoint: Factory, tmp_path: Path, text: str, method: str
) -> None:
    folder = tiny_checkpoint("llama", num_key_value_heads=4)
    reports = {
        name: quantize_checkpoint(
            str(folder), tmp_path / name, QuantizationRecipe.parse(text, name), SEQUENCES
        )
        for name in ("rtn", method)
    }
    better, plain = reports[method].mean_weighted_error, reports["rtn"].mean_weighted_error
    assert better is not None and plain is not None and better < plain
    assert reports[method].artefact_bytes == reports["rtn"].artefact_bytes


def test_an_outlier_row_is_singled_out_by_the_report(tiny_checkpoint: Factory, tmp_path: Path) -> None:
    folder = tiny_checkpoint("llama")
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.1.self_attn.k_proj"
    tensors[f"{name}.weight"][:, 3] = 30.0
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    report = quantize_checkpoint(str(folder), tmp_path / "w4", scheme("channel"))
    others = {module.module: module.squared_error for module in report.modules}
    assert others.pop(name) > 5 * max(others.values())


def test_dead_and_zero_weights_stay_exactly_zero_and_are_named(
    tiny_checkpoint: Factory, tmp_path: Path
) -> None:
    folder = tiny_checkpoint("llama")
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.0.mlp.gate_proj.weight"][5] = 0  # a dead input of down_proj as well
    tensors["model.layers.0.self_attn.v_proj.weight"].zero_()  # the whole module, and all that o_proj reads
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    recipe = QuantizationRecipe.parse("group32", "gptq")
    report = quantize_checkpoint(str(folder), tmp_path / "w4", recipe, SEQUENCES)
    artefact = open_checkpoint(str(tmp_path / "w4"))
    assert not artefact.tensor("model.layers.0.mlp.gate_proj.weight")[5].any()
    assert not artefact.tensor("model.layers.0.self_attn.v_proj.weight").any()
    notes = {module.module: module.note for module in report.modules if module.note}
    assert notes["model.layers.0.mlp.gate_proj"] == "2 rows or groups are all zero"
    assert notes["model.layers.0.self_attn.v_proj"] == "64 rows or groups are all zero"
    assert all(torch.isfinite(artefact.tensor(name)).all() for name in artefact.shapes)


def test_a_tied_head_stays_tied_and_is_stored_once(tiny_checkpoint: Factory, tmp_path: Path) -> None:
    folder = tiny_checkpoint("llama", tie_word_embeddings=True)
    quantize_checkpoint(str(folder), tmp_path / "w4", QuantizationRecipe.parse("channel", "awq"), SEQUENCES)
    names = load_file(tmp_path / "w4" / "model.safetensors").keys()
    assert not [name for name in names if name.startswith("lm_head")]
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "w4", dtype=torch.float32)
    assert model.lm_head.weight.data_ptr() == model.get_input_embeddings().weight.data_ptr()


def test_the_root_holds_no_weights_but_those_of_the_model(tiny_checkpoint: Factory, tmp_path: Path) -> None:
    folder = tiny_checkpoint("llama", num_key_value_heads=4)
    quantize_checkpoint(str(folder), tmp_path / "w4", QuantizationRecipe.parse("channel", "awq"), SEQUENCES)
    found = {path.name for path in (tmp_path / "w4").glob("*.safetensors")}  # as vLLM looks for weights
    assert found == {"model.safetensors"}
    assert sorted(path.name for path in (tmp_path / "w4" / "spear").iterdir()) == [
        "folds.safetensors",
        "quantization.json",
    ]


def test_the_configuration_is_copied_but_for_what_quantisation_adds(
    tiny_checkpoint: Factory, tmp_path: Path
) -> None:
    rope = {"rope_type": "linear", "factor": 4.0, "rope_theta": 5000.0}
    folder = tiny_checkpoint("llama", rope_parameters=rope)
    before = json.loads((folder / "config.json").read_text()) | {"of_somebody_else": [1, 2]}
    (folder / "config.json").write_text(json.dumps(before))
    quantize_checkpoint(str(folder), tmp_path / "w4", scheme())
    after = json.loads((tmp_path / "w4" / "config.json").read_text())
    assert after.keys() - before.keys() == {"quantization_config", "spear"}
    assert {key: after[key] for key in before} == before
    tokens = torch.arange(3, 300)[None]  # beyond the original positions
    with torch.inference_mode():
        theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "w4", dtype=torch.float32).eval()
        expected = reference_model(folder, "group32", torch.float32)(tokens).logits
        assert torch.equal(theirs(tokens).logits, expected)


def test_every_name_of_the_weight_type_says_the_same(tiny_checkpoint: Factory, tmp_path: Path) -> None:
    folder = tiny_checkpoint("llama", dtype="bfloat16")
    config = json.loads((folder / "config.json").read_text())
    config |= {"dtype": "float32", "torch_dtype": "float32"}
    (folder / "config.json").write_text(json.dumps(config))
    quantize_checkpoint(str(folder), tmp_path / "w4", scheme())
    after = json.loads((tmp_path / "w4" / "config.json").read_text())
    assert after["dtype"] == after["torch_dtype"] == "bfloat16"


def test_the_report_is_kept_beside_the_weights(tiny_checkpoint: Factory, tmp_path: Path) -> None:
    recipe = QuantizationRecipe.parse("channel", "gptq", ["*0.*q_proj=dense"])
    report = quantize_checkpoint(str(tiny_checkpoint("llama")), tmp_path / "w4", recipe, SEQUENCES)
    kept = json.loads((tmp_path / "w4" / "spear" / "quantization.json").read_text())
    assert kept["recipe"] == str(recipe)
    assert kept["artefact_bytes"] == report.artefact_bytes
    assert kept["calibration_tokens"] == sum(map(len, SEQUENCES)) == report.calibration_tokens
    assert [module["module"] for module in kept["modules"]] == [module.module for module in report.modules]
    first, second = kept["modules"][:2]
    assert (first["method_used"], first["weighted_error"]) == ("dense", None)
    assert second["method_used"] == "gptq" and 0 < second["weighted_error"] < 0.2


def test_activations_of_a_hundred_thousand_stay_finite(tiny_checkpoint: Factory, tmp_path: Path) -> None:
    folder = tiny_checkpoint("llama", dtype="bfloat16", num_key_value_heads=4)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.embed_tokens.weight"][:, 7] = 1e5  # a residual stream beyond float16
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    for method in ("gptq", "awq", "omniquant"):
        recipe = QuantizationRecipe.parse("channel", method, options=MethodOptions(clipping_steps=3))
        report = quantize_checkpoint(str(folder), tmp_path / method, recipe, SEQUENCES)
        assert all(0 <= (module.weighted_error or 0) < 1 for module in report.modules)
    with torch.inference_mode():
        model = AutoModelForCausalLM.from_pretrained(tmp_path / "awq", dtype=torch.bfloat16).eval()
        assert torch.isfinite(model(torch.arange(3, 60)[None]).logits).all()


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
