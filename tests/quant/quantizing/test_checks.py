from pathlib import Path
from typing import Any

import pytest

from spearhead.errors import CalibrationError, CheckpointError, ConfigError
from spearhead.model.architecture import ModelConfig
from spearhead.model.checkpoint.layout import linear_modules
from spearhead.quant.quantizing.checks import check_groups, check_room, check_sequences
from spearhead.quant.recipe import QuantizationRecipe


def config(**changes: Any) -> ModelConfig:
    shape: dict[str, Any] = {
        "model_type": "llama",
        "hidden_size": 1024,
        "intermediate_size": 2752,
        "num_hidden_layers": 3,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "vocab_size": 100,
        "max_position_embeddings": 64,
    }
    return ModelConfig.from_hugging_face(shape | changes)


def refuse(scheme: str, *overrides: str, **changes: Any) -> str:
    shape = config(**changes)
    choices = QuantizationRecipe.parse(scheme, "rtn", overrides).choices(linear_modules(shape))
    with pytest.raises(CheckpointError) as caught:
        check_groups(shape, choices)
    return caught.value.message


def test_2752_inputs_in_groups_of_128_name_the_module_and_what_fits() -> None:
    assert refuse("group128") == (
        "group size 128 does not divide the inputs of mlp.down_proj (K = 2752) in each of 3 layers; use "
        "group64, group32, channel for them, such as --override '*mlp.down_proj=group64'"
    )


def test_3420_inputs_fit_no_group_at_all() -> None:
    message = refuse("group64", intermediate_size=3420)
    assert "mlp.down_proj (K = 3420) in each of 3 layers; use channel for them" in message


def test_overrides_are_checked_too_and_single_modules_named_in_full() -> None:
    message = refuse("channel", "model.layers.1.mlp.*=group128", "*.2.mlp.down_proj=group128")
    assert (
        "of model.layers.1.mlp.down_proj (K = 2752), model.layers.2.mlp.down_proj (K = 2752); use" in message
    )


def test_every_module_that_does_not_fit_is_listed() -> None:
    message = refuse("group128", hidden_size=96, head_dim=16)
    for part in ("q_proj (K = 96)", "k_proj", "v_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"):
        assert part in message
    assert "o_proj" not in message  # 8 heads of 16


def test_overrides_can_mend_what_the_scheme_does_not_fit() -> None:
    shape = config()
    recipe = QuantizationRecipe.parse("group128", "rtn", ["*down_proj=group64"])
    check_groups(shape, recipe.choices(linear_modules(shape)))


@pytest.mark.parametrize(
    ("method", "sequences", "message"),
    [
        ("gptq", None, "gptq needs calibration tokens; give them, or use rtn"),
        ("gptq", [], "0 calibration sequences"),
        ("rtn", [[1, 2], []], "some empty"),
        ("rtn", [[1] * 65], "has 65 tokens, the model reads 64"),
        ("rtn", [[1, 100]], "token 100 is not among the model's 100"),
        ("rtn", [[1, -1]], "token -1 is not among"),
    ],
)
def test_calibration_tokens_that_cannot_be_used_are_refused(
    method: str, sequences: list[list[int]] | None, message: str
) -> None:
    choices = QuantizationRecipe.parse("channel", method).choices(linear_modules(config()))
    with pytest.raises(CalibrationError, match=message):
        check_sequences(config(), choices, sequences)


def test_a_disk_without_room_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    check_room([(tmp_path, 1), (tmp_path, 1)])
    with pytest.raises(ConfigError, match=r"MB free and the run writes up to 2000000000000 MB there"):
        check_room([(tmp_path, 10**18), (tmp_path, 10**18)])
    assert not list(tmp_path.iterdir())
