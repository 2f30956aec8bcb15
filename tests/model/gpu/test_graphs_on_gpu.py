"""Captured steps on a GPU have the bits of launched ones, whatever else has been replayed in between."""

import gc

import pytest
import torch

from spearhead.model.attention import Segment
from spearhead.model.checkpoint import load_variants, open_checkpoint
from spearhead.model.gpu.loading import capture_steps
from spearhead.model.loading import load_model
from spearhead.model.settings import KvCacheSettings, ModelSettings

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="computes on a CUDA device"),
]

SIZES = {
    "hidden_size": 192,
    "intermediate_size": 448,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "max_position_embeddings": 1024,
}
COMPENSATED = {
    "model.layers.0.self_attn.q_proj": (192, 192, 8, 16),
    "model.layers.0.self_attn.o_proj": (192, 192, 20, 8),
    "model.layers.1.mlp.up_proj": (448, 192, 16, 0),
    "model.layers.1.mlp.down_proj": (192, 448, 4, 4),
}
TOKENS = [(37 * i * i + 11 * i) % 320 for i in range(600)]
# (sequences, rows of each, tokens before them)
STEPS = [(1, 1, 40), (1, 5, 300), (1, 17, 600), (2, 3, 50), (3, 5, 70), (8, 1, 100), (12, 5, 30), (40, 1, 20)]


@pytest.fixture
def load(tiny_checkpoint, tiny_artefact, add_compensators):
    """``load(scheme)(graphs) -> engine``; no scheme = full precision."""

    def choose(scheme):
        folder = tiny_checkpoint("llama", **SIZES)
        if scheme is not None:
            folder = tiny_artefact(folder, scheme)
            add_compensators(folder, COMPENSATED)

        def make(*, graphs):
            checkpoint = open_checkpoint(str(folder))
            engine = load_model(
                checkpoint,
                ModelSettings(path="tiny", dtype="bfloat16", device="cuda"),
                KvCacheSettings(page_count=512),
                config=checkpoint.config,
                load_weights=lambda dtype, device: load_variants(
                    checkpoint,
                    variants=("fp16",) if scheme is None else ("w4", "w4+ec"),
                    dtype=dtype,
                    device=device,
                    keep_four_bits=True,
                ),
            ).engine
            if graphs:
                capture_steps(engine.decoder, engine.variants)
            return engine

        return make

    return choose


@torch.inference_mode()
def run(engine, variant):
    """Logits of every step, each on random keys and values of its own sequences."""
    torch.manual_seed(1)
    for layer in engine.decoder.storage.layers:
        layer.normal_()
    found = []
    for sequences, rows, start in STEPS:
        width = 512 // sequences
        segments = [
            Segment(pages=range(width * i, width * (i + 1)), start=start, count=rows)
            for i in range(sequences)
        ]
        count = sequences * rows
        result = engine.decoder.forward(engine.variants[variant], segments, TOKENS[:count], range(count))
        assert all(result.finite)
        found.append(result.logits.cpu())
    return found


@pytest.mark.parametrize("scheme", [None, "channel", "group32"])
def test_replays_have_the_bits_of_launches(load, scheme):
    engine = load(scheme)(graphs=False)
    assert engine.decoder.graphs is None
    launched = {variant: run(engine, variant) for variant in engine.variants}
    capture_steps(engine.decoder, engine.variants)
    for _ in range(20):
        for variant, expected in launched.items():
            for step, one, other in zip(STEPS, run(engine, variant), expected, strict=True):
                assert torch.equal(one, other), (variant, step)
    engine.decoder.products.check_integrity()


def test_a_model_that_captures_serves_and_leaves_within_bounds(load):
    before = torch.cuda.memory_reserved()
    make = load("channel")
    engine = make(graphs=True)
    assert engine.decoder.graphs is not None
    assert all(torch.isfinite(logits).all() for logits in run(engine, "w4+ec"))
    assert torch.cuda.memory_reserved() - before < 2 << 30
    del engine
    gc.collect()
    again = make(graphs=True)  # a second capture after the first one's graphs are gone
    assert all(torch.isfinite(logits).all() for logits in run(again, "w4"))
