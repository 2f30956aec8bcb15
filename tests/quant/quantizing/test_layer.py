from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from spearhead.model.checkpoint import open_checkpoint
from spearhead.model.checkpoint.layout import linear_modules
from spearhead.quant.decoder import layer_forward
from spearhead.quant.layer_pass import LayerVisit, visit_layers
from spearhead.quant.layers import StreamedLayers
from spearhead.quant.methods.options import MethodOptions
from spearhead.quant.quantizing.block import Block
from spearhead.quant.quantizing.layer import LayerQuantizer, QuantizedLayer
from spearhead.quant.recipe import QuantizationRecipe
from spearhead.quant.sequences import batches

Factory = Callable[..., Path]
SEQUENCES = [list(range(3, 63)), list(range(40, 90)), list(range(100, 130))]


def quantized(
    folder: Path, method: str, steps: int = 60, rate: float = 0.02, skip_first: int = 0, batch_size: int = 2
) -> tuple[QuantizedLayer, float]:
    """The first layer, and the squared error of its output on the calibration tokens that count."""
    done: list[tuple[QuantizedLayer, float]] = []
    with closing(open_checkpoint(str(folder))) as checkpoint:
        source = StreamedLayers(checkpoint, dtype=torch.float32, device=torch.device("cpu"))
        options = MethodOptions(clipping_steps=steps, clipping_rate=rate)
        recipe = QuantizationRecipe.parse("channel", method, options=options)
        quantizer = LayerQuantizer(
            config=checkpoint.config,
            choices=recipe.choices(linear_modules(checkpoint.config)),
            options=recipe.options,
            dtype=torch.float16,
        )

        def advance(visit: LayerVisit) -> dict[str, torch.Tensor]:
            tensors = dict(visit.tensors)
            if visit.index == 0:
                layer = quantizer.quantize(0, tensors, visit)
                done.append((layer, output_error(source, visit, layer)))
            return tensors

        groups = [batch.without_first(skip_first) for batch in batches(SEQUENCES, batch_size)]
        visit_layers(source, groups, advance)
    return done[0]


def output_error(source: StreamedLayers, visit: LayerVisit, layer: QuantizedLayer) -> float:
    total = 0.0
    for inputs, batch in zip(visit.inputs, visit.batches, strict=True):
        rotary = visit.rotary.part(0, inputs.shape[1])
        outputs = [
            layer_forward(source.config, 0, tensors, inputs, rotary)
            for tensors in (visit.tensors, layer.effective)
        ]
        total += float((outputs[0] - outputs[1])[batch.valid].square().sum())
    return total


def test_learned_clipping_lowers_the_error_of_the_layers_output(tiny_checkpoint: Factory) -> None:
    folder = tiny_checkpoint("qwen2")
    layer, error = quantized(folder, "omniquant")
    _, plain = quantized(folder, "rtn")
    _, searched = quantized(folder, "rtn-clip")
    assert error < 0.95 * searched < 0.95 * plain
    assert {report.method_used for report in layer.reports} == {"omniquant"}


@pytest.mark.parametrize("changed", [{"steps": 20}, {"rate": 0.05}])
def test_every_option_of_learned_clipping_has_an_effect(
    tiny_checkpoint: Factory, changed: dict[str, Any]
) -> None:
    folder = tiny_checkpoint("qwen2")
    (before, _), (after, _) = quantized(folder, "omniquant"), quantized(folder, "omniquant", **changed)
    assert any(not torch.equal(before.stored[name], after.stored[name]) for name in before.stored)


def test_learned_clipping_is_for_the_tokens_that_count(tiny_checkpoint: Factory) -> None:
    skipped, losses = 20, []

    def advance(visit: LayerVisit) -> dict[str, torch.Tensor]:
        true = dict(visit.tensors)
        other = {"mlp.down_proj": 0.9 * true["mlp.down_proj.weight"]}
        loss = float(Block(source.config, true, true, visit).loss(other, 0))
        outputs = [
            layer_forward(source.config, visit.index, tensors, visit.inputs[0], visit.rotary.part(0, 60))
            for tensors in (true, true | {"mlp.down_proj.weight": other["mlp.down_proj"]})
        ]
        difference = (outputs[0] - outputs[1])[visit.batches[0].valid]
        losses.append((loss, float(difference.square().mean())))
        return true

    with closing(open_checkpoint(str(tiny_checkpoint("qwen2")))) as checkpoint:
        source = StreamedLayers(checkpoint, dtype=torch.float32, device=torch.device("cpu"))
        (batch,) = batches(SEQUENCES[:2], 2)
        for group in (batch, batch.without_first(skipped)):
            visit_layers(source, [group], advance)
    assert all(loss == pytest.approx(wanted, rel=1e-5) for loss, wanted in losses)
    assert losses[0] != losses[len(losses) // 2]


def test_a_batch_in_which_no_token_counts_is_left_out(tiny_checkpoint: Factory) -> None:
    folder = tiny_checkpoint("qwen2")
    assert len(SEQUENCES[2]) == 30  # a batch of its own, all of it skipped
    layer, error = quantized(folder, "omniquant", skip_first=30, batch_size=1)
    assert {report.method_used for report in layer.reports} == {"omniquant"}
    assert 0 < error < float("inf")


def test_the_simplest_of_equals_is_kept_and_told(tiny_checkpoint: Factory) -> None:
    folder = tiny_checkpoint("qwen2")
    layer, error = quantized(folder, "omniquant", steps=1)
    assert error <= min(quantized(folder, method)[1] for method in ("rtn", "rtn-clip"))
    assert all((report.method_used == "omniquant") != bool(report.note) for report in layer.reports)


def test_the_layer_that_others_see_is_the_one_that_is_stored(tiny_checkpoint: Factory) -> None:
    folder = tiny_checkpoint("qwen2", num_key_value_heads=4)
    layer, _ = quantized(folder, "awq")
    for name, tensor in layer.effective.items():
        stored = layer.stored.get(f"model.layers.0.{name}")
        if stored is not None:
            assert torch.equal(stored.float(), tensor), name
    assert layer.folds.keys() >= {"model.layers.0.self_attn.o_proj.input_scale"}
