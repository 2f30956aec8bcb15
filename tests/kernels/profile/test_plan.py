"""What a latency table covers."""

import json

import pytest

from kernels.profile.plan import numbers, read_model, row_buckets, tile_limits
from kernels.w4a16.plan import default_plan
from kernels.w4a16.shapes import MODELS


def test_both_ends_of_each_step_between_tiles_are_measured():
    limits = tile_limits([default_plan(4096, 4096, 132)])
    found = row_buckets(limits, 2048)
    for limit in (16, 32, 64, 128):
        assert {limit, limit + 1} <= set(found)


@pytest.mark.parametrize("most", [2, 3, 100, 2048])
def test_row_buckets_rise_from_one_row_to_the_most(most):
    found = row_buckets({16, 32}, most)
    assert found == tuple(sorted(set(found)))
    assert (found[0], found[-1]) == (1, most)


def test_one_row_count_is_refused():
    with pytest.raises(ValueError, match="at most 1 rows: a curve needs two row counts"):
        row_buckets((), 1)


def test_lists_of_numbers_are_sorted_and_checked():
    assert numbers("8,1,8,4") == (1, 4, 8)
    with pytest.raises(ValueError, match="0 in '0,4'"):
        numbers("0,4")


@pytest.mark.parametrize(("strategy", "group"), [({"strategy": "channel"}, 0), ({"group_size": 64}, 64)])
def test_a_checkpoint_gives_dimensions_and_group_size(tmp_path, strategy, group):
    config = {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "vocab_size": 49152,
        "quantization_config": {"config_groups": {"group_0": {"weights": {"num_bits": 4, **strategy}}}},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert read_model(tmp_path) == (MODELS["smollm2"], group)


def test_a_folder_without_dimensions_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"config\.json gives no model's dimensions"):
        read_model(tmp_path)
    (tmp_path / "config.json").write_text('{"hidden_size": 576}')
    with pytest.raises(ValueError, match="num_attention_heads"):
        read_model(tmp_path)


def test_a_group_of_gpus_shares_the_products_of_a_layer():
    model = MODELS["70b-tp2"]
    assert model.heads == (32, 4)
    assert [shape.out_features for shape in model.products] == [5120, 8192, 28672, 8192]
