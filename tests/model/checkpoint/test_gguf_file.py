from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from spearhead.errors import CheckpointError
from spearhead.model.checkpoint import load_variants, open_checkpoint
from spearhead.model.checkpoint.compensator_files import (
    CompensatorDescription,
    StoredCompensator,
    save_compensators,
)
from spearhead.model.checkpoint.factor_codec import encode_factor
from spearhead.model.checkpoint.layout import linear_modules
from spearhead.model.quantization import InputGroups
from spearhead.model.rope import RopeConfig, inverse_frequencies

Factory = Callable[..., Path]


@pytest.mark.parametrize(
    ("architecture", "overrides"),
    [
        ("llama", {}),
        ("llama", {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
        ("qwen2", {}),
        ("qwen3", {"head_dim": 32}),
        ("mistral", {"sliding_window": 16}),
    ],
)
def test_a_gguf_file_holds_the_same_model_as_its_folder(
    tiny_checkpoint: Factory, tiny_gguf: Factory, architecture: str, overrides: dict[str, Any]
) -> None:
    folder = tiny_checkpoint(architecture, **overrides)
    ours, theirs = open_checkpoint(str(tiny_gguf(folder))), open_checkpoint(str(folder))
    assert ours.config == theirs.config
    assert ours.shapes == dict(theirs.shapes)
    for name in theirs.shapes:
        assert torch.equal(ours.tensor(name), theirs.tensor(name)), name


@pytest.mark.parametrize(
    ("kind", "bound", "weight_dtype"),
    # Bounds: half a step of each block format, relative to the largest of 32 normal weights.
    [
        ("F16", 1e-3, "float16"),
        ("BF16", 8e-3, "bfloat16"),
        ("Q8_0", 1e-2, "float16"),
        ("Q4_1", 0.15, "float16"),
        ("Q4_0", 0.2, "float16"),
    ],
)
def test_blocks_are_dequantised_row_by_row(
    tiny_checkpoint: Factory, tiny_gguf: Factory, kind: str, bound: float, weight_dtype: str
) -> None:
    folder = tiny_checkpoint("llama")
    ours, theirs = open_checkpoint(str(tiny_gguf(folder, kind))), open_checkpoint(str(folder))
    assert ours.weight_dtype == weight_dtype
    for name in theirs.shapes:
        exact = theirs.tensor(name)
        error = (ours.tensor(name) - exact).square().mean().sqrt() / exact.square().mean().sqrt()
        assert error < bound, name


def test_the_bytes_are_those_of_the_full_precision_weights(
    tiny_checkpoint: Factory, tiny_gguf: Factory
) -> None:
    folder = tiny_checkpoint("llama", dtype="float16")
    checkpoint = open_checkpoint(str(tiny_gguf(folder, "Q4_1")))
    assert checkpoint.stored_bytes == open_checkpoint(str(folder)).stored_bytes


@pytest.mark.parametrize("share", [0.0, 0.0001, 0.01, 0.3, 0.99])
def test_a_truncated_file_is_refused(tiny_checkpoint: Factory, tiny_gguf: Factory, share: float) -> None:
    path = tiny_gguf(tiny_checkpoint("llama"))
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(CheckpointError, match="no readable GGUF file, or is truncated"):
        open_checkpoint(str(path))


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"PK" + bytes(1000))
    with pytest.raises(CheckpointError, match="no readable GGUF file"):
        open_checkpoint(str(path))


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"llama__expert_count": 8}, "expert_count is 8"),
        ({"llama__rope__dimension_count": 8}, "rope.dimension_count is 8; only 16"),
        ({"llama__rope__scaling__type": "longrope"}, "RoPE scaling 'longrope' is not supported"),
        (
            {"llama__rope__scaling__type": "yarn", "llama__rope__scaling__attn_factor": 2.0},
            "attn_factor is not supported",
        ),
        ({"llama__rope__scaling__type": "yarn"}, "original_context_length is None"),
    ],
)
def test_metadata_that_cannot_be_served_is_refused(
    tiny_checkpoint: Factory, tiny_gguf: Factory, extra: dict[str, Any], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(str(tiny_gguf(tiny_checkpoint("llama"), **extra)))


def test_yarn_is_read_from_the_metadata(tiny_checkpoint: Factory, tiny_gguf: Factory) -> None:
    path = tiny_gguf(
        tiny_checkpoint("llama"),
        llama__rope__scaling__type="yarn",
        llama__rope__scaling__factor=4.0,
        llama__rope__scaling__original_context_length=64,
    )
    expected = RopeConfig(theta=10_000.0, scaling="yarn", factor=4.0, original_context_length=64)
    assert open_checkpoint(str(path)).config.rope == expected


def test_an_end_of_turn_token_ends_a_sequence_too(tiny_checkpoint: Factory, tiny_gguf: Factory) -> None:
    path = tiny_gguf(tiny_checkpoint("llama"), tokenizer__ggml__eot_token_id=5)
    assert open_checkpoint(str(path)).config.eos_token_ids == (2, 5)


def test_llama3_scaling_is_recognised_by_its_divisors(tiny_checkpoint: Factory, tiny_gguf: Factory) -> None:
    rope = RopeConfig(theta=10_000.0, scaling="llama3", factor=32.0, original_context_length=8192)
    plain, _ = inverse_frequencies(RopeConfig(theta=10_000.0), 16)
    scaled, _ = inverse_frequencies(rope, 16)
    path = tiny_gguf(tiny_checkpoint("llama"), tensors={"rope_freqs.weight": (plain / scaled).numpy()})
    assert open_checkpoint(str(path)).config.rope == rope


def test_divisors_of_another_rule_are_refused(tiny_checkpoint: Factory, tiny_gguf: Factory) -> None:
    divisors = np.linspace(1, 32, 8, dtype=np.float32)
    path = tiny_gguf(tiny_checkpoint("llama"), tensors={"rope_freqs.weight": divisors})
    with pytest.raises(CheckpointError, match="do not follow Llama 3's rule"):
        open_checkpoint(str(path))


def test_a_tensor_type_that_cannot_be_dequantised_is_named(
    tiny_checkpoint: Factory, tiny_gguf: Factory
) -> None:
    path = tiny_gguf(tiny_checkpoint("llama"), tensors={"rope_freqs.weight": np.ones(8, dtype=np.int32)})
    with pytest.raises(
        CheckpointError, match=r"rope_freqs\.weight is of type I32, which cannot be dequantised"
    ):
        open_checkpoint(str(path))


@pytest.mark.parametrize(
    ("kind", "description"),
    [
        ("Q4_0", "w4 gguf Q4_0, group 32"),
        ("Q4_1", "w4 gguf Q4_1, group 32"),
        ("Q8_0", "w8 gguf Q8_0, group 32"),
    ],
)
@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_codes_are_kept_when_they_are_asked_for(
    tiny_checkpoint: Factory, tiny_gguf: Factory, architecture: str, kind: str, description: str
) -> None:
    path = str(tiny_gguf(tiny_checkpoint(architecture), kind))
    full, kept = open_checkpoint(path), open_checkpoint(path, gguf_codes=True)
    assert (full.quantization, full.variants) == ("", ("fp16",))
    assert (kept.quantization, kept.variants) == (description, ("w4",))
    modules = linear_modules(kept.config)
    assert dict(kept.input_groups) == dict.fromkeys(modules, InputGroups(size=32))
    assert dict(full.input_groups) == {}
    for module in modules:
        weight = kept.quantized_weight(module)
        assert weight is not None
        assert torch.equal(weight.dequantize(), full.tensor(f"{module}.weight")), module
        assert full.quantized_weight(module) is None
    assert kept.revision == full.revision
    assert kept.stored_bytes < full.stored_bytes


def test_kept_codes_are_served_as_w4(tiny_checkpoint: Factory, tiny_gguf: Factory) -> None:
    folder = tiny_checkpoint("llama", dtype="float16")
    kept = open_checkpoint(str(tiny_gguf(folder, "Q4_0")), gguf_codes=True)
    full = open_checkpoint(str(folder))
    variants = load_variants(
        kept, variants=("w4",), dtype=torch.float32, device=torch.device("cpu"), full_precision=full
    )
    expected = kept.tensor("model.layers.1.mlp.down_proj.weight")
    assert torch.equal(variants["w4"].layers[1].down.weight, expected)
    assert variants["w4"].quantization == "w4 gguf Q4_0, group 32"


def test_projections_in_other_types_stay_dense(tiny_checkpoint: Factory, tiny_gguf: Factory) -> None:
    with pytest.raises(CheckpointError, match="holds no projection in Q4_0, Q4_1 or Q8_0"):
        open_checkpoint(str(tiny_gguf(tiny_checkpoint("llama"), "BF16")), gguf_codes=True)


def test_scales_that_are_not_finite_are_named_when_opening(
    tiny_checkpoint: Factory, tiny_gguf: Factory
) -> None:
    path = tiny_gguf(tiny_checkpoint("llama"), "Q4_0")
    tensor = next(one for one in gguf.GGUFReader(path).tensors if one.name == "blk.1.ffn_down.weight")
    content = bytearray(path.read_bytes())
    content[tensor.data_offset : tensor.data_offset + 2] = b"\x00\x7e"
    path.write_bytes(content)
    with pytest.raises(
        CheckpointError, match=r"layers\.1\.mlp\.down_proj\.weight has a block whose scale is NaN"
    ):
        open_checkpoint(str(path), gguf_codes=True)


def test_codes_of_a_folder_cannot_be_asked_for(tiny_checkpoint: Factory) -> None:
    with pytest.raises(CheckpointError, match=r"is no \.gguf file, whose blocks could be read as codes"):
        open_checkpoint(str(tiny_checkpoint("llama")), gguf_codes=True)


def test_compensators_of_one_file_leave_its_neighbour_as_it_is(
    tiny_checkpoint: Factory, tiny_gguf: Factory, tmp_path: Path
) -> None:
    together = tmp_path / "together"
    together.mkdir()
    folder = tiny_checkpoint("llama")
    first, second = (tiny_gguf(folder, kind).rename(together / f"{kind}.gguf") for kind in ("Q4_1", "Q4_0"))
    weights = open_checkpoint(str(first), gguf_codes=True)
    module, (outputs, inputs) = next(iter(linear_modules(weights.config).items()))
    stored = StoredCompensator(
        a=encode_factor(torch.ones(2, inputs), bits=16), b=encode_factor(torch.ones(2, outputs), bits=16)
    )
    description = CompensatorDescription(
        w4_sha256=weights.weight_digests, quantization=weights.quantization, details={}
    )
    save_compensators(together, {module: stored}, description)
    assert open_checkpoint(str(first), gguf_codes=True).variants == ("w4", "w4+ec")
    assert open_checkpoint(str(second), gguf_codes=True).variants == ("w4",)
    first.unlink()  # then they may be of this file under another name
    with pytest.raises(CheckpointError, match="fitted to other 4-bit weights"):
        open_checkpoint(str(second), gguf_codes=True)
