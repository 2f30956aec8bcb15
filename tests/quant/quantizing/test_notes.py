from spearhead.quant.quantizing.notes import fused_apart
from spearhead.quant.recipe import QuantizationRecipe

MODULES = [
    f"model.layers.{layer}.{part}"
    for layer in range(2)
    for part in (
        *(f"self_attn.{name}_proj" for name in "qkvo"),
        *(f"mlp.{name}_proj" for name in ("gate", "up", "down")),
    )
]


def notes(*overrides: str) -> list[str]:
    return fused_apart(QuantizationRecipe.parse("channel", "rtn", overrides).choices(MODULES))


def test_projections_that_a_server_fuses_should_share_a_grid() -> None:
    (note,) = notes("*1.self_attn.v_proj=dense", "*0.mlp.up_proj=w8")
    assert "layers.0.mlp (gate_proj, up_proj), layers.1.self_attn (q_proj, k_proj, v_proj);" in note


def test_other_methods_and_other_projections_are_no_matter() -> None:
    assert notes("*v_proj=channel:gptq", "*down_proj=group64", "*o_proj=w8", "model.layers.1.*=w8") == []
