from spearhead.model.architecture import ModelConfig
from spearhead.quant.quantizing.notes import fused_apart, too_few_tokens
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


def test_few_tokens_for_the_widest_module_are_remarked_on() -> None:
    shape = {
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 8,
        "max_position_embeddings": 16,
    }
    config = ModelConfig.from_hugging_face(shape)
    (note,) = too_few_tokens(config, 8 * 96 - 1)
    assert "767 calibration tokens are few for modules of 96 inputs" in note and "give 768 or more" in note
    assert too_few_tokens(config, 8 * 96) == []
