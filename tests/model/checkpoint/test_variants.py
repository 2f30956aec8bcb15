import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from kernels.w4a16 import PackedWeight
from spearhead.errors import CheckpointError
from spearhead.model.checkpoint import load_variants, offered_variants, open_checkpoint
from spearhead.model.decoder import linear
from spearhead.model.quantization import QuantizationScheme
from spearhead.model.weights import ModelWeights
from spearhead.quant import QuantizationRecipe, quantize_checkpoint

Factory = Callable[..., Path]
CPU = torch.device("cpu")
SEQUENCES = [list(range(3, 60)), list(range(9, 50))]
GROUP32 = QuantizationScheme.parse("group32")


def load(
    path: Path, *variants: str, dtype: torch.dtype = torch.float32, **kwargs: Any
) -> dict[str, ModelWeights]:
    return load_variants(open_checkpoint(str(path)), variants=variants, dtype=dtype, device=CPU, **kwargs)


def same(first: ModelWeights, second: ModelWeights) -> bool:
    pairs = zip(first.tensors(), second.tensors(), strict=True)
    return all(torch.equal(one, other) for one, other in pairs)


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "mistral"])
def test_projections_are_fused_in_order(tiny_checkpoint: Factory, architecture: str) -> None:
    folder = tiny_checkpoint(architecture)
    tensors = load_file(folder / "model.safetensors")
    layer = load(folder, "fp16")["fp16"].layers[1]
    name = "model.layers.1."
    for field, parts in {
        "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "output": ("self_attn.o_proj",),
        "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
        "down": ("mlp.down_proj",),
    }.items():
        linear = getattr(layer, field)
        assert torch.equal(linear.weight, torch.cat([tensors[f"{name}{part}.weight"] for part in parts]))
        if f"{name}{parts[0]}.bias" in tensors:
            assert torch.equal(linear.bias, torch.cat([tensors[f"{name}{part}.bias"] for part in parts]))
        else:
            assert linear.bias is None
    assert torch.equal(layer.input_norm, tensors[f"{name}input_layernorm.weight"])
    assert torch.equal(layer.post_attention_norm, tensors[f"{name}post_attention_layernorm.weight"])
    assert (layer.q_norm is not None) == (architecture == "qwen3")


def test_every_tensor_is_in_the_compute_type(tiny_checkpoint: Factory) -> None:
    folder = tiny_checkpoint("qwen3", dtype="float16")
    for weights in load(folder, "fp16", "w4", dtype=torch.bfloat16, quantization=GROUP32).values():
        assert {tensor.dtype for tensor in weights.tensors()} == {torch.bfloat16}


def test_variants_share_what_is_not_quantised(tiny_checkpoint: Factory) -> None:
    variants = load(tiny_checkpoint("qwen2"), "fp16", "w4", quantization=GROUP32)
    full, quantized = variants["fp16"], variants["w4"]
    assert full.embedding is quantized.embedding
    assert full.head.weight is quantized.head.weight
    assert full.final_norm is quantized.final_norm
    assert full.layers[0].input_norm is quantized.layers[0].input_norm
    assert full.layers[0].qkv.bias is quantized.layers[0].qkv.bias
    assert not torch.equal(full.layers[0].qkv.weight, quantized.layers[0].qkv.weight)


def test_a_tied_head_is_the_embedding(tiny_checkpoint: Factory) -> None:
    weights = load(tiny_checkpoint("llama", tie_word_embeddings=True), "fp16")["fp16"]
    assert weights.head.weight is weights.embedding


@pytest.mark.parametrize("scheme", ["group32", "channel/7", "tensor"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_quantising_at_load_equals_loading_the_artefact(
    tiny_checkpoint: Factory, tiny_artefact: Factory, scheme: str, dtype: str
) -> None:
    folder = tiny_checkpoint("qwen2", dtype=dtype)
    at_load = load(folder, "w4", quantization=QuantizationScheme.parse(scheme))["w4"]
    stored = load(tiny_artefact(folder, scheme), "w4")["w4"]
    assert same(at_load, stored)
    assert at_load.quantization == stored.quantization
    # The artefact also stores the shape of each module, two int64.
    assert at_load.stored_bytes == stored.stored_bytes - 14 * 16


def test_an_artefact_gives_both_precisions_with_its_source(
    tiny_checkpoint: Factory, tiny_artefact: Factory
) -> None:
    folder = tiny_checkpoint("llama")
    artefact = tiny_artefact(folder)
    named = load(artefact, "fp16", "w4")
    assert same(named["fp16"], load(folder, "fp16")["fp16"])
    assert same(named["w4"], load(artefact, "w4")["w4"])
    given = load(artefact, "fp16", "w4", full_precision=open_checkpoint(str(folder)))
    assert same(given["fp16"], named["fp16"])


@pytest.mark.parametrize("recipe", [("channel", "awq"), ("group32", "rtn")])
def test_an_artefact_keeps_its_own_norms_and_biases_beside_its_source(
    tiny_checkpoint: Factory, tmp_path: Path, recipe: tuple[str, str]
) -> None:
    folder = tiny_checkpoint("qwen2", num_key_value_heads=4)  # AWQ scales norms and the biases of v
    quantize_checkpoint(str(folder), tmp_path / "w4", QuantizationRecipe.parse(*recipe), SEQUENCES)
    both = load(tmp_path / "w4", "fp16", "w4")
    assert same(both["fp16"], load(folder, "fp16")["fp16"])
    assert same(both["w4"], load(tmp_path / "w4", "w4")["w4"])
    assert both["w4"].embedding is both["fp16"].embedding
    assert both["w4"].head.weight is both["fp16"].head.weight


def test_an_embedding_that_is_the_sources_rounded_is_held_once(
    tiny_checkpoint: Factory, tiny_gguf: Factory, tmp_path: Path
) -> None:
    source = tiny_gguf(tiny_checkpoint("llama"), "Q4_1")
    quantize_checkpoint(str(source), tmp_path / "w4", QuantizationRecipe.parse("channel"))
    both = load(tmp_path / "w4", "fp16", "w4")
    assert both["w4"].embedding is both["fp16"].embedding


def test_another_embedding_than_the_sources_is_held_beside_it(
    tiny_checkpoint: Factory, tiny_artefact: Factory
) -> None:
    folder = tiny_checkpoint("llama")
    artefact = tiny_artefact(folder)
    tensors = load_file(artefact / "model.safetensors")
    tensors["model.embed_tokens.weight"].neg_()
    save_file(tensors, artefact / "model.safetensors", metadata={"format": "pt"})
    both = load(artefact, "fp16", "w4")
    assert torch.equal(both["w4"].embedding, -both["fp16"].embedding)


def test_a_source_that_changed_since_is_refused(tiny_checkpoint: Factory, tiny_artefact: Factory) -> None:
    folder = tiny_checkpoint("llama")
    artefact = tiny_artefact(folder)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"] += 1
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"is not what .* was made from"):
        load(artefact, "fp16", "w4")
    assert load(artefact, "w4").keys() == {"w4"}


def test_another_model_as_full_precision_is_refused(tiny_checkpoint: Factory, tiny_artefact: Factory) -> None:
    artefact = tiny_artefact(tiny_checkpoint("llama"))
    other = open_checkpoint(str(tiny_checkpoint("llama", num_hidden_layers=3)))
    with pytest.raises(CheckpointError, match=r"was not made from .*: layer_count is 2, was 3; sliding_"):
        load(artefact, "fp16", full_precision=other)


def test_copies_of_a_model_may_disagree_about_where_sequences_end(
    tiny_checkpoint: Factory, tiny_artefact: Factory
) -> None:
    folder = tiny_checkpoint("llama")
    artefact = tiny_artefact(folder)
    config = json.loads((artefact / "config.json").read_text()) | {"max_position_embeddings": 64}
    (artefact / "config.json").write_text(json.dumps(config))
    (artefact / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 6]}))
    assert load(artefact, "fp16", "w4").keys() == {"fp16", "w4"}


def test_a_quantised_checkpoint_as_full_precision_is_refused(
    tiny_checkpoint: Factory, tiny_artefact: Factory
) -> None:
    artefact = tiny_artefact(tiny_checkpoint("llama"))
    with pytest.raises(CheckpointError, match="was given as full precision, but is quantised"):
        load(artefact, "fp16", full_precision=open_checkpoint(str(artefact)))


def test_compensators_sit_at_the_rows_of_their_modules(
    tiny_checkpoint: Factory, tiny_artefact: Factory, add_compensators: Any
) -> None:
    artefact = tiny_artefact(tiny_checkpoint("llama"))
    prefix = "model.layers.1."
    add_compensators(
        artefact,
        {
            f"{prefix}self_attn.q_proj": (64, 64, 4, 4),
            f"{prefix}self_attn.v_proj": (32, 64, 2, 0),
            f"{prefix}mlp.up_proj": (96, 64, 3, 0),
            f"{prefix}mlp.down_proj": (64, 96, 2, 0),
        },
    )
    variants = load(artefact, "w4", "w4+ec")
    plain, compensated = variants["w4"], variants["w4+ec"]
    first, layer = compensated.layers
    assert first.qkv.compensators == first.gate_up.compensators == first.down.compensators == ()
    assert [(c.row_offset, c.row_count) for c in layer.qkv.compensators] == [(0, 64), (96, 32)]
    assert [(c.row_offset, c.row_count) for c in layer.gate_up.compensators] == [(96, 96)]
    assert [(c.row_offset, c.row_count) for c in layer.down.compensators] == [(0, 64)]
    assert layer.qkv.compensators[0].gate is not None
    assert layer.qkv.compensators[1].gate is None
    assert plain.layers[1].qkv.weight is layer.qkv.weight
    assert plain.layers[1].qkv.compensators == ()
    assert compensated.compensator_digest.startswith("sha256:")
    assert compensated.stored_bytes > plain.stored_bytes
    assert compensated.resident_bytes > plain.resident_bytes


def test_what_is_offered_can_be_loaded(
    tiny_checkpoint: Factory, tiny_artefact: Factory, add_compensators: Any
) -> None:
    folder = tiny_checkpoint("llama")
    artefact = tiny_artefact(folder)
    add_compensators(artefact, {"model.layers.0.mlp.up_proj": (96, 64, 3, 0)})
    full, quantized = open_checkpoint(str(folder)), open_checkpoint(str(artefact))
    assert offered_variants(full) == ("fp16",)
    assert offered_variants(full, quantization=GROUP32) == ("w4", "fp16")
    assert offered_variants(quantized) == ("w4+ec", "w4", "fp16")
    for checkpoint, scheme in ((full, None), (full, GROUP32), (quantized, None)):
        offered = offered_variants(checkpoint, quantization=scheme)
        loaded = load_variants(
            checkpoint, variants=offered, dtype=torch.float32, device=CPU, quantization=scheme
        )
        assert tuple(loaded) == offered


@pytest.mark.parametrize(
    ("variant", "remedy"),
    [
        ("w4", "it offers fp16. Name a quantization, such as group32"),
        ("w4+ec", "Give a quantised checkpoint with compensators"),
        ("int3", "cannot be loaded"),
    ],
)
def test_a_variant_that_cannot_be_had_is_refused(tiny_checkpoint: Factory, variant: str, remedy: str) -> None:
    with pytest.raises(CheckpointError, match=remedy):
        load(tiny_checkpoint("llama"), variant)


def test_a_group_that_does_not_divide_is_refused_before_reading(tiny_checkpoint: Factory) -> None:
    folder = tiny_checkpoint("llama", intermediate_size=80)
    with pytest.raises(CheckpointError, match=r"mlp\.down_proj \(K = 80\)"):
        load(folder, "w4", quantization=GROUP32)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("name", ["model.embed_tokens.weight", "model.layers.1.mlp.down_proj.weight"])
def test_weights_that_are_not_finite_are_named(tiny_checkpoint: Factory, name: str, value: float) -> None:
    folder = tiny_checkpoint("llama")
    tensors = load_file(folder / "model.safetensors")
    tensors[name][3, 5] = value
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=f"tensor {name} holds NaN or infinity as float32"):
        load(folder, "fp16")


def test_weights_beyond_the_compute_type_are_named(tiny_checkpoint: Factory) -> None:
    folder = tiny_checkpoint("llama")
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"][0] = 1e5
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight holds NaN or infinity as float16"):
        load(folder, "fp16", dtype=torch.float16)


@pytest.mark.parametrize("scheme", ["group32", "channel", "tensor"])
def test_weights_kept_in_four_bits_give_what_dequantised_ones_give(
    tiny_checkpoint: Factory, tiny_artefact: Factory, scheme: str
) -> None:
    path = tiny_artefact(tiny_checkpoint("qwen2"), scheme)
    dense, kept = (load(path, "w4", keep_four_bits=keep)["w4"] for keep in (False, True))
    pairs = []
    for one, other in zip(dense.layers, kept.layers, strict=True):
        pairs += [(one.qkv, other.qkv), (one.output, other.output)]
        pairs += [(one.gate_up, other.gate_up), (one.down, other.down)]
    for one, other in pairs:
        assert isinstance(one.weight, torch.Tensor) and isinstance(other.weight, PackedWeight)
        x = torch.randn(3, one.weight.shape[1], generator=torch.Generator().manual_seed(0))
        torch.testing.assert_close(linear(x, other), linear(x, one), rtol=1e-4, atol=1e-4)
    assert kept.resident_bytes < dense.resident_bytes


def test_four_bits_made_at_load_equal_those_of_an_artefact(
    tiny_checkpoint: Factory, tiny_artefact: Factory
) -> None:
    folder = tiny_checkpoint("llama")
    made = load(folder, "w4", quantization=GROUP32, keep_four_bits=True)["w4"]
    assert same(made, load(tiny_artefact(folder), "w4", keep_four_bits=True)["w4"])
