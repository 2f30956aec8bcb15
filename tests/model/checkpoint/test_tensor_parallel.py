from dataclasses import replace

import pytest

from spearhead.errors import CheckpointError
from spearhead.model.architecture import ModelConfig
from spearhead.model.checkpoint.tensor_parallel import check_tensor_parallel, scheme_groups
from spearhead.model.quantization import InputGroups, QuantizationScheme


def config(intermediate_size: int, head_count: int = 14, head_dim: int = 64) -> ModelConfig:
    """A shape such as Qwen2.5-0.5B's: 896 hidden, 4864 inside, which is 38 groups of 128."""
    return ModelConfig.from_hugging_face(
        {
            "model_type": "qwen2",
            "architectures": ["Qwen2ForCausalLM"],
            "hidden_act": "silu",
            "hidden_size": head_count * head_dim,
            "intermediate_size": intermediate_size,
            "num_hidden_layers": 2,
            "num_attention_heads": head_count,
            "num_key_value_heads": 2,
            "vocab_size": 100,
            "max_position_embeddings": 128,
        }
    )


def check(model: ModelConfig, scheme: str, size: int) -> None:
    check_tensor_parallel(model, scheme_groups(model, QuantizationScheme.parse(scheme)), size)


@pytest.mark.parametrize(
    ("scheme", "size"), [("group128", 1), ("group64", 2), ("group32", 4), ("channel", 4)]
)
def test_shards_of_whole_groups_are_accepted(scheme: str, size: int) -> None:
    check(config(4864), scheme, size)


def test_a_shard_that_cuts_a_group_is_refused_with_the_sizes_that_fit() -> None:
    with pytest.raises(
        CheckpointError,
        match=r"size 4 does not fit .*layers\.0\.mlp\.down_proj has 4864 inputs, 1216 a shard, which cuts "
        r"through groups of 128; .*Use size 2 or 1, or weights with smaller groups",
    ):
        check(config(4864, head_count=16), "group128", 4)


def test_three_shards_are_accepted_where_three_divides_the_groups() -> None:
    model = config(11008 * 3, head_count=48, head_dim=128)
    check(model, "group128", 3)
    with pytest.raises(
        CheckpointError, match=r"11008 inputs, 3669\.33 a shard, which cuts through groups of 128"
    ):
        check(config(11008, head_count=48, head_dim=128), "group128", 3)
    with pytest.raises(CheckpointError, match="which cuts through single inputs"):
        check(config(11008, head_count=48, head_dim=128), "channel", 3)


def test_inputs_grouped_by_activation_cannot_be_split() -> None:
    model = config(4864)
    groups = scheme_groups(model, QuantizationScheme.parse("group32"))
    scattered = {module: replace(one, act_order=True) for module, one in groups.items()}
    check_tensor_parallel(model, scattered, 1)
    with pytest.raises(CheckpointError, match=r"o_proj groups its inputs by activation.*Use size 1,"):
        check_tensor_parallel(model, scattered, 2)


def test_projections_that_are_split_along_their_outputs_and_dense_ones_do_not_matter() -> None:
    scattered = InputGroups(size=128, act_order=True)
    names = ("model.layers.0.self_attn.q_proj", "model.layers.0.mlp.up_proj", "lm_head")
    check_tensor_parallel(config(4864), dict.fromkeys(names, scattered), 7)
    check_tensor_parallel(config(4864), {}, 7)
