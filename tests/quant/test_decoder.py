from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from spearhead.model.checkpoint import open_checkpoint
from spearhead.quant.decoder import KeyValues, Rotary, layer_forward
from spearhead.quant.layers import ResidentLayers, StreamedLayers, final_hidden

SHAPES: dict[str, dict[str, Any]] = {
    "llama": {"tie_word_embeddings": True},
    "qwen2": {"tie_word_embeddings": False},
    "qwen3": {},
    "mistral": {"sliding_window": 16},
}


def streamed(folder: Path) -> StreamedLayers:
    return StreamedLayers(open_checkpoint(str(folder)), dtype=torch.float32, device=torch.device("cpu"))


@pytest.mark.parametrize("architecture", SHAPES)
def test_logits_are_those_of_transformers(tiny_checkpoint: Callable[..., Path], architecture: str) -> None:
    folder = tiny_checkpoint(architecture, **SHAPES[architecture])
    tokens = torch.arange(3, 83).reshape(2, 40)
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        source = ResidentLayers(streamed(folder))
        ours = final_hidden(source, tokens) @ source.head.T
        expected = theirs(tokens).logits
        assert torch.dist(ours, expected) < 1e-4 * expected.norm()


@pytest.mark.parametrize("architecture", SHAPES)
def test_tokens_one_by_one_give_what_the_whole_sequence_gives(
    tiny_checkpoint: Callable[..., Path], architecture: str
) -> None:
    source = streamed(tiny_checkpoint(architecture, **SHAPES[architecture]))
    config, rotary = source.config, Rotary.build(source.config, 40, source.device)
    hidden = torch.randn(2, 40, config.hidden_size, generator=torch.Generator().manual_seed(1))
    empty = torch.zeros(2, config.kv_head_count, 40, config.head_dim)
    past = KeyValues(keys=empty.clone(), values=empty.clone())
    layer = source.layer(1)
    whole = layer_forward(config, 1, layer, hidden, rotary)
    spans = [(0, 7), (7, 12), *((t, t + 1) for t in range(12, 40))]
    parts = [
        layer_forward(config, 1, layer, hidden[:, start:stop], rotary.part(start, stop), past=past)
        for start, stop in spans
    ]
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=1e-4, atol=1e-4)


def test_a_replaced_weight_is_the_one_that_is_used(tiny_checkpoint: Callable[..., Path]) -> None:
    with closing(open_checkpoint(str(tiny_checkpoint("llama")))) as checkpoint:
        source = StreamedLayers(
            checkpoint,
            dtype=torch.float32,
            device=torch.device("cpu"),
            replace=lambda module, weight: 2 * weight if module.endswith("layers.1.mlp.up_proj") else weight,
        )
        name = "mlp.up_proj.weight"
        original = checkpoint.tensor("model.layers.1.mlp.up_proj.weight")
        assert torch.equal(source.layer(1)[name], 2 * original)
        assert torch.equal(source.layer(0)[name], checkpoint.tensor("model.layers.0.mlp.up_proj.weight"))
