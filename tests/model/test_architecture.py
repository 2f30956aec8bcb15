from typing import Any

import pytest
from transformers import AutoConfig

from spearhead.errors import CheckpointError
from spearhead.model.architecture import ModelConfig

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def parse(**changes: Any) -> ModelConfig:
    return ModelConfig.from_hugging_face(LLAMA | changes)


def test_both_spellings_of_rope_parameters_mean_the_same() -> None:
    scaling = {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    four = parse(rope_theta=5e5, rope_scaling={"rope_type": "llama3"} | scaling)
    older = parse(rope_theta=5e5, rope_scaling={"type": "llama3"} | scaling)
    five = parse(rope_parameters={"rope_type": "llama3", "rope_theta": 5e5} | scaling)
    assert four == older == five
    assert five.rope.theta == 5e5
    assert five.rope.scaling == "llama3"


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "mistral"])
def test_what_transformers_writes_is_read_with_its_defaults(architecture: str) -> None:
    theirs = AutoConfig.for_model(architecture)
    ours = ModelConfig.from_hugging_face(theirs.to_diff_dict())
    assert ours.architecture == architecture
    assert ours.kv_head_count == theirs.num_key_value_heads
    assert ours.head_dim == getattr(theirs, "head_dim", theirs.hidden_size // theirs.num_attention_heads)
    assert ours.rms_norm_eps == theirs.rms_norm_eps
    assert ours.context_length == theirs.max_position_embeddings
    assert ours.tie_word_embeddings == theirs.tie_word_embeddings


def test_each_architecture_switches_its_own_biases_and_norms_on() -> None:
    flags = {
        name: (config.qkv_bias, config.output_bias, config.mlp_bias, config.qk_norm)
        for name, config in {
            "llama": parse(),
            "llama with biases": parse(attention_bias=True, mlp_bias=True),
            "qwen2": parse(model_type="qwen2"),
            "qwen3": parse(model_type="qwen3"),
            "qwen3 with biases": parse(model_type="qwen3", attention_bias=True),
            "mistral": parse(model_type="mistral"),
        }.items()
    }
    assert flags == {
        "llama": (False, False, False, False),
        "llama with biases": (True, True, True, False),
        "qwen2": (True, False, False, False),
        "qwen3": (False, False, False, True),
        "qwen3 with biases": (True, True, False, True),
        "mistral": (False, False, False, False),
    }


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"model_type": "mistral", "sliding_window": 16}, (16, 16, 16, 16)),
        ({"model_type": "mistral", "sliding_window": None}, (None,) * 4),
        ({"model_type": "mistral"}, (4096,) * 4),
        ({"model_type": "qwen2", "sliding_window": 16}, (None,) * 4),
        (
            {"model_type": "qwen2", "sliding_window": 16, "use_sliding_window": True, "max_window_layers": 3},
            (None, None, None, 16),
        ),
        (
            {
                "model_type": "qwen3",
                "sliding_window": 16,
                "use_sliding_window": True,
                "layer_types": ["full_attention", "sliding_attention"] * 2,
            },
            (None, 16, None, 16),
        ),
        ({"sliding_window": 16}, (None,) * 4),
    ],
)
def test_each_layer_gets_the_window_that_its_architecture_configures(
    changes: dict[str, Any], expected: tuple[int | None, ...]
) -> None:
    assert parse(**changes).sliding_windows == expected


def test_the_generation_config_decides_which_tokens_end_a_sequence() -> None:
    assert parse().eos_token_ids == (2,)
    config = ModelConfig.from_hugging_face(LLAMA, {"eos_token_id": [7, 8]})
    assert config.eos_token_ids == (7, 8)
    assert ModelConfig.from_hugging_face(LLAMA, {"temperature": 0.6}).eos_token_ids == (2,)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gemma"}, r"model_type is 'gemma'; supported architectures are llama, qwen2"),
        ({"model_type": None}, "model_type is None"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; only silu"),
        (
            {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
            "RoPE scaling 'dynamic' is not supported",
        ),
        ({"rope_scaling": {"type": "longrope"}}, "RoPE scaling 'longrope'.*Remove the scaling"),
        ({"rope_scaling": {"type": "linear"}}, "'linear' has no factor"),
        ({"rope_scaling": {"type": "llama3", "factor": 8.0}}, "needs low_freq_factor"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1.0}}}, "differ from layer to layer"),
        ({"partial_rotary_factor": 0.5}, r"partial_rotary_factor is 0\.5"),
        (
            {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
            "partial_rotary_factor",
        ),
        ({"hidden_size": None}, "no hidden_size"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0; it must be an integer of at least 1"),
        ({"vocab_size": "many"}, "vocab_size is 'many'"),
        ({"num_attention_heads": 3, "head_dim": 16}, "3 is not a multiple of num_key_value_heads 2"),
        ({"head_dim": 15}, "head_dim 15 is odd"),
        ({"hidden_size": 66}, "66 is not a multiple of num_attention_heads 4"),
        (
            {"model_type": "qwen2", "use_sliding_window": True, "layer_types": ["linear_attention"] * 4},
            "linear_attention",
        ),
    ],
)
def test_what_would_be_computed_wrongly_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        parse(**changes)
