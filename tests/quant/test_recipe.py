from typing import get_args

import pytest

from spearhead.errors import ConfigError
from spearhead.model.quantization import QuantizationScheme
from spearhead.quant.methods.options import MethodOptions
from spearhead.quant.recipe import Method, ModuleChoice, QuantizationRecipe

MODULES = [
    f"model.layers.{layer}.{part}"
    for layer in (0, 1, 10)
    for part in ("self_attn.q_proj", "self_attn.o_proj", "mlp.down_proj")
]


@pytest.mark.parametrize("method", get_args(Method))
@pytest.mark.parametrize("scheme", ["channel/7", "group32/7.5", "w8/127", "w8/127.5", "w8/128"])
def test_a_choice_prints_as_what_it_was_read_from(scheme: str, method: str) -> None:
    assert str(ModuleChoice.parse(f"{scheme}:{method}")) == f"{scheme}:{method}"


def test_w8_is_eight_bits_a_channel_rounded_to_nearest() -> None:
    choice = ModuleChoice.parse("w8", "gptq")
    assert (choice.bits, choice.scheme.granularity, choice.method) == (8, "channel", "rtn")
    assert choice.description == "w8 symmetric, per channel, absmax/127.5"


def test_a_method_is_part_of_the_description() -> None:
    assert ModuleChoice.parse("group64:gptq").description == "w4 symmetric, group 64, absmax/7.5, gptq"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("w8/7", "quantization 'w8/7' is not understood"),
        ("w3", "quantization 'w3' is not understood; write tensor, channel"),
        ("channel:sgd", "method 'sgd' is not known; use rtn, rtn-clip,"),
        ("tensor:awq", "awq needs scales per channel or per group"),
        ("group48", "group size is 48"),
    ],
)
def test_a_choice_that_cannot_be_is_refused_with_the_choices(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ModuleChoice.parse(text)


def test_eight_bits_share_scales_per_channel() -> None:
    with pytest.raises(ConfigError, match=r"per channel only, not group32/7\.5"):
        ModuleChoice(scheme=QuantizationScheme.parse("group32"), bits=8)


def test_a_scheme_may_name_the_method() -> None:
    assert QuantizationRecipe.parse("channel:gptq") == QuantizationRecipe.parse("channel", "gptq")
    assert QuantizationRecipe.parse("channel:gptq", "gptq") == QuantizationRecipe.parse("channel", "gptq")
    with pytest.raises(ConfigError, match="scheme 'channel:gptq' names a method, and awq is given too"):
        QuantizationRecipe.parse("channel:gptq", "awq")


def test_the_last_override_that_matches_wins() -> None:
    recipe = QuantizationRecipe.parse(
        "channel",
        "gptq",
        ["re:.*down_proj=group64", "model.layers.0.*=w8", "model.layers.0.self_attn.o_proj=dense"],
    )
    chosen = {module: str(choice or "dense") for module, choice in recipe.choices(MODULES).items()}
    assert chosen == {
        "model.layers.0.self_attn.q_proj": "w8/127.5:rtn",
        "model.layers.0.self_attn.o_proj": "dense",
        "model.layers.0.mlp.down_proj": "w8/127.5:rtn",
        "model.layers.1.self_attn.q_proj": "channel/7.5:gptq",
        "model.layers.1.self_attn.o_proj": "channel/7.5:gptq",
        "model.layers.1.mlp.down_proj": "group64/7.5:gptq",
        "model.layers.10.self_attn.q_proj": "channel/7.5:gptq",
        "model.layers.10.self_attn.o_proj": "channel/7.5:gptq",
        "model.layers.10.mlp.down_proj": "group64/7.5:gptq",
    }


def test_a_recipe_prints_everything_that_decides_the_outcome() -> None:
    recipe = QuantizationRecipe.parse("channel", "gptq", ["*down_proj=dense"], MethodOptions(act_order=True))
    assert str(recipe) == (
        "channel/7.5:gptq; *down_proj=dense; act_order=True damping=0.01 awq_points=20 clipping_steps=100 "
        "clipping_rate=0.02"
    )


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("*lm_head=w8", r"override '\*lm_head' matches no module; names look like model\.layers\.0"),
        ("re:layers.0=w8", "matches no module"),
        ("model.layers.7.*=w8", "matches no module"),
        ("re:*=w8", "is no regular expression"),
        ("w8", "override 'w8' is not understood; write PATTERN=CHOICE"),
        ("=w8", "is not understood"),
        ("*=dense", "keep every module dense"),
        ("*=group7", "group size is 7"),
    ],
)
def test_an_override_without_effect_or_sense_is_refused(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        QuantizationRecipe.parse("channel", "rtn", [override]).choices(MODULES)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"damping": 0.0}, "damping is 0.0"),
        ({"damping": 2.0}, "damping is 2.0"),
        ({"awq_points": 0}, "0 AWQ points"),
        ({"clipping_steps": 0}, "0 clipping steps"),
        ({"clipping_rate": 0.0}, "clipping rate is 0.0"),
    ],
)
def test_numbers_out_of_range_are_refused(numbers: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MethodOptions(**numbers)  # type: ignore[arg-type]
