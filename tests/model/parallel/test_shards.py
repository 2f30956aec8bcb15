"""Where models are cut, and which cannot be."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spearhead.errors import CheckpointError
from spearhead.model.architecture import ModelConfig
from spearhead.model.checkpoint.layout import scheme_groups
from spearhead.model.parallel import plan_shards
from spearhead.model.quantization import InputGroups, QuantizationScheme


def config(channels: int, heads: int = 14, kv_heads: int = 2, head_dim: int = 64) -> ModelConfig:
    """A shape such as Qwen2.5-0.5B's: 14 heads over 2, 4864 channels, which is 38 groups of 128."""
    return ModelConfig.from_hugging_face(
        {
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            "hidden_act": "silu",
            "hidden_size": heads * head_dim,
            "head_dim": head_dim,
            "intermediate_size": channels,
            "num_hidden_layers": 2,
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "vocab_size": 100,
            "max_position_embeddings": 128,
        }
    )


def plan(model: ModelConfig, scheme: str, size: int) -> list[tuple[int, int]]:
    """(Key-value heads, channels) of each rank."""
    groups = scheme_groups(model, QuantizationScheme.parse(scheme)) if scheme else {}
    return [(len(shard.kv_heads), len(shard.channels)) for shard in plan_shards(model, groups, size)]


@pytest.mark.parametrize("channels", [11008, 14336])
def test_three_ranks_of_eight_heads_have_three_three_and_two(channels):
    parts = plan(config(channels, heads=32, kv_heads=8, head_dim=128), "group128", 3)
    assert [heads for heads, _ in parts] == [3, 3, 2]
    assert sum(own for _, own in parts) == channels
    assert all(own % 128 == 0 for _, own in parts)
    assert max(own for _, own in parts) - min(own for _, own in parts) <= 128


def test_channels_are_cut_between_groups_although_equal_parts_would_cut_one():
    assert plan(config(4864, heads=16, kv_heads=4), "group128", 4) == [
        (1, 1280),
        (1, 1280),
        (1, 1152),
        (1, 1152),
    ]


def test_heads_of_one_group_stay_together():
    # Two heads of 64 share a group of 128 inputs of the attention's output.
    assert [heads for heads, _ in plan(config(1024, heads=6, kv_heads=6), "group128", 2)] == [4, 2]
    with pytest.raises(CheckpointError, match=r"of which 2 must stay together \(at most 3 ranks\)"):
        plan(config(1024, heads=6, kv_heads=6), "group128", 4)


def test_a_model_with_fewer_heads_than_ranks_is_refused_with_its_shapes():
    with pytest.raises(
        CheckpointError,
        match=r"cannot be cut for 3 ranks: its 14 query heads share 2 key-value heads of 64, .*4864 channels "
        r"come in groups of 64 \(at most 76 ranks\); set parallel.tensor_parallel_size to at most 2",
    ):
        plan(config(4864), "group64", 3)


def test_fewer_groups_than_ranks_are_refused():
    with pytest.raises(CheckpointError, match=r"256 channels come in groups of 128 \(at most 2 ranks\)"):
        plan(config(256, kv_heads=14), "group128", 3)


def test_inputs_grouped_by_activation_cannot_be_cut():
    model = config(4864)
    groups = scheme_groups(model, QuantizationScheme.parse("group32"))
    scattered = {module: replace(one, act_order=True) for module, one in groups.items()}
    assert len(plan_shards(model, scattered, 1)) == 1
    with pytest.raises(
        CheckpointError, match=r"o_proj has 896 inputs in groups in the order of their activation"
    ):
        plan_shards(model, scattered, 2)


def test_a_smaller_last_group_cannot_be_cut():
    groups = {"model.layers.0.mlp.down_proj": InputGroups(size=100)}
    with pytest.raises(CheckpointError, match=r"4864 inputs in groups of 100, the last one smaller"):
        plan_shards(config(4864), groups, 2)


def test_projections_that_are_cut_along_their_outputs_may_have_any_groups():
    scattered = InputGroups(size=100, act_order=True)
    names = ("model.layers.0.self_attn.q_proj", "model.layers.0.mlp.up_proj", "lm_head")
    assert len(plan_shards(config(4864), dict.fromkeys(names, scattered), 2)) == 2


@given(
    kv_heads=st.integers(1, 12), queries=st.integers(1, 5), size=st.integers(1, 6),
    head_dim=st.sampled_from([16, 64, 80]), units=st.integers(1, 90), group=st.sampled_from([0, 32, 64, 128]),
)  # fmt: skip
def test_shards_cover_a_model_once_in_whole_groups(kv_heads, queries, size, head_dim, units, group):
    model = config(units * (group or 16), kv_heads * queries, kv_heads, head_dim)
    groups = dict.fromkeys(("l.mlp.down_proj", "l.self_attn.o_proj"), InputGroups(size=group))
    try:
        shards = plan_shards(model, groups, size)
    except CheckpointError:
        return
    cuts = [shard.cuts(model) for shard in shards]
    for part, total in (
        ("self_attn.k_proj", kv_heads * head_dim),
        ("self_attn.o_proj", kv_heads * queries * head_dim),
        ("mlp.down_proj", model.intermediate_size),
    ):
        assert [place for cut in cuts for place in cut[part].span] == list(range(total))
        assert all(len(cut[part].span) for cut in cuts)
        assert group == 0 or part == "self_attn.k_proj" or all(c[part].span.start % group == 0 for c in cuts)
    shapes = [shard.shape(model) for shard in shards]
    assert sum(shape.head_count for shape in shapes) == model.head_count
    assert all(shard.most_kv_heads == max(shape.kv_head_count for shape in shapes) for shard in shards)
