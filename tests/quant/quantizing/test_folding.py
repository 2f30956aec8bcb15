from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import torch

from spearhead.model.checkpoint import open_checkpoint
from spearhead.quant.decoder import Rotary, layer_forward
from spearhead.quant.layer_pass import LayerVisit, visit_layers
from spearhead.quant.layers import StreamedLayers
from spearhead.quant.quantizing.folding import FoldedLayer, fold_layer
from spearhead.quant.recipe import ModuleChoice
from spearhead.quant.sequences import batch_of

PARTS = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"]
PARTS += ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]
MULTI_HEAD = {"num_key_value_heads": 4}


def visited(folder: Path) -> tuple[StreamedLayers, LayerVisit]:
    visits: list[LayerVisit] = []
    with closing(open_checkpoint(str(folder))) as checkpoint:
        source = StreamedLayers(checkpoint, dtype=torch.float32, device=torch.device("cpu"))
        source.embedding[:, [3, 17]] *= 20  # a few large inputs, as real models have
        sequences = [list(range(3, 83)), list(range(40, 90))]
        visit_layers(source, [batch_of(sequences)], lambda visit: visits.append(visit) or visit.tensors)
        return source, visits[0]


def fold(visit: LayerVisit, dtype: torch.dtype, **overrides: str) -> FoldedLayer:
    choices = {part: ModuleChoice.parse(overrides.get(part.split(".")[1], "channel:awq")) for part in PARTS}
    return fold_layer(visit.tensors, choices, visit.moments, points=10, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_a_folded_layer_computes_the_same(
    tiny_checkpoint: Callable[..., Path], architecture: str, dtype: torch.dtype
) -> None:
    source, visit = visited(tiny_checkpoint(architecture, **MULTI_HEAD))
    folded = fold(visit, dtype)
    assert {"self_attn.q_proj", "self_attn.o_proj", "mlp.up_proj", "mlp.down_proj"} <= set(folded.columns)
    assert {"self_attn.v_proj", "mlp.up_proj"} == set(folded.rows)
    hidden = visit.inputs[0]
    rotary = Rotary.build(source.config, hidden.shape[1], source.device)
    before = layer_forward(source.config, 0, visit.tensors, hidden, rotary)
    after = layer_forward(source.config, 0, folded.tensors, hidden, rotary)
    # Rounded norms are made up for exactly, so a 16-bit type costs nothing.
    assert torch.dist(after, before) < 1e-5 * before.norm()


def test_moments_and_weights_of_a_folded_layer_belong_together(
    tiny_checkpoint: Callable[..., Path],
) -> None:
    _, visit = visited(tiny_checkpoint("llama", **MULTI_HEAD))
    folded = fold(visit, torch.float16)
    for part in PARTS:
        true, other = visit.tensors[f"{part}.weight"], folded.tensors[f"{part}.weight"]
        torch.testing.assert_close(folded.unfolded(part, other), true, rtol=1e-4, atol=1e-6)
        moments = folded.moments(part, visit.moments[part])
        rows = folded.rows.get(part, torch.ones(len(true))).double()
        outputs = other.double() / rows[:, None]
        torch.testing.assert_close(
            outputs @ moments.second @ outputs.T,
            true.double() @ visit.moments[part].second @ true.double().T,
            rtol=1e-4,
            atol=1e-4,
        )


def test_grouped_heads_cannot_take_the_scales_of_the_output_projection(
    tiny_checkpoint: Callable[..., Path],
) -> None:
    _, visit = visited(tiny_checkpoint("llama"))
    folded = fold(visit, torch.float16)
    assert "self_attn.o_proj" not in folded.columns
    assert "self_attn.q_proj" in folded.columns


@pytest.mark.parametrize("other", ["channel:gptq", "w8"])
def test_an_input_is_scaled_only_if_all_its_readers_agree(
    tiny_checkpoint: Callable[..., Path], other: str
) -> None:
    _, visit = visited(tiny_checkpoint("llama", **MULTI_HEAD))
    folded = fold(visit, torch.float16, k_proj=other)
    assert not {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"} & set(folded.columns)
    assert "mlp.gate_proj" in folded.columns


def test_rows_that_share_one_scale_are_not_scaled(tiny_checkpoint: Callable[..., Path]) -> None:
    _, visit = visited(tiny_checkpoint("llama", **MULTI_HEAD))
    assert "mlp.down_proj" not in fold(visit, torch.float16, up_proj="tensor").columns


def test_a_dead_norm_channel_is_left_alone(tiny_checkpoint: Callable[..., Path]) -> None:
    _, visit = visited(tiny_checkpoint("llama", **MULTI_HEAD))
    visit.tensors["input_layernorm.weight"][4] = 0
    folded = fold(visit, torch.float16)
    assert float(folded.columns["self_attn.q_proj"][4]) == 1.0
    assert float(folded.tensors["input_layernorm.weight"][4]) == 0.0
