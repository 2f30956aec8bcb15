"""A model that is cut gives the logits of the whole one."""

from pathlib import Path

import pytest
import torch

TOKENS = [(37 * i) % 320 for i in range(40)]
LAYER = "model.layers.{}."
SHAPES = [
    pytest.param("llama", {"tie_word_embeddings": True}, 2, id="tied"),
    pytest.param("llama", {"attention_bias": True, "mlp_bias": True}, 2, id="biases-of-sums"),
    pytest.param("qwen2", {}, 2, id="qkv-biases"),
    pytest.param(
        "qwen3", {"num_attention_heads": 8, "num_key_value_heads": 2}, 2, id="qk-norm-and-groups-of-four"
    ),
    pytest.param("mistral", {"num_key_value_heads": 4}, 2, id="no-grouping"),
    pytest.param(
        "llama", {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 4}, 3, id="heads-3-3-2"
    ),
]


def assert_equal(whole: torch.Tensor, parts: list[torch.Tensor]) -> None:
    """Within rounding of sums in another order, and the same bits on all ranks."""
    scale = whole.abs().max()
    for part in parts:
        assert torch.equal(part, parts[0])
        assert (part - whole).abs().max() <= 1e-5 * scale


@pytest.mark.parametrize(("architecture", "changes", "size"), SHAPES)
@pytest.mark.parametrize("variant", ["fp16", "w4"])
def test_logits_of_all_ranks_are_those_of_one(
    architecture, changes, size, variant, tiny_checkpoint, logits_of
):
    path = tiny_checkpoint(architecture, **changes)
    scheme = "channel" if variant == "w4" else ""
    (whole,) = logits_of(path, 1, variant, TOKENS, scheme=scheme)
    assert_equal(whole, logits_of(path, size, variant, TOKENS, scheme=scheme))


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("four_bits", [False, True])
def test_corrections_are_added_once_and_gated_by_the_whole_code(
    size, four_bits, tiny_checkpoint, tiny_artefact, add_compensators, logits_of
):
    source = tiny_checkpoint(
        "llama",
        hidden_size=96,
        num_attention_heads=12,
        num_key_value_heads=3,
        head_dim=32,
        attention_bias=True,
    )
    artefact = tiny_artefact(source)
    add_compensators(
        artefact,
        {
            LAYER.format(0) + "self_attn.q_proj": (384, 96, 4, 6),
            LAYER.format(0) + "self_attn.v_proj": (96, 96, 18, 0),
            LAYER.format(0) + "self_attn.o_proj": (96, 384, 8, 5),
            LAYER.format(1) + "mlp.up_proj": (96, 96, 16, 3),
            LAYER.format(1) + "mlp.down_proj": (96, 96, 4, 7),
            LAYER.format(0) + "mlp.down_proj": (96, 96, 3, 0),
        },
    )
    (whole,) = logits_of(artefact, 1, "w4+ec", TOKENS, keep_four_bits=four_bits)
    (without,) = logits_of(artefact, 1, "w4", TOKENS)
    assert (whole - without).abs().max() > 1e-2 * whole.abs().max()
    assert_equal(whole, logits_of(artefact, size, "w4+ec", TOKENS, keep_four_bits=four_bits))


def test_a_bias_of_a_sum_that_is_far_larger_than_everything_else_is_added_once(tiny_checkpoint, logits_of):
    from safetensors.torch import load_file, save_file

    path: Path = tiny_checkpoint("llama", attention_bias=True, mlp_bias=True)
    tensors = load_file(path / "model.safetensors")
    for name in tensors:
        if name.endswith(("o_proj.bias", "down_proj.bias")):
            tensors[name] = torch.full_like(tensors[name], 100.0)
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    (whole,) = logits_of(path, 1, "fp16", TOKENS)
    assert_equal(whole, logits_of(path, 2, "fp16", TOKENS))
