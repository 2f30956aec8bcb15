"""Whole models on a GPU against the processor: errors within bounds, and bits that no batch changes.

The bound of an error is a multiple of the processor's own error in the same compute type: both are measured
against the processor in float32, and both round as often. Three times it leaves room for another order of
additions, and for compensators' factors, which a GPU holds in the compute type and the processor in float32.
The processor holds 4-bit weights dequantised, which is exact in float32.
"""

import pytest
import torch

from spearhead.model.attention import Segment
from spearhead.model.checkpoint import load_variants, open_checkpoint
from spearhead.model.gpu.step import MAX_ROWS
from spearhead.model.loading import load_model
from spearhead.model.profiler import profile_engine
from spearhead.model.settings import KvCacheSettings, ModelSettings

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="computes on a CUDA device"),
]

# SmolLM2's proportions: no width is a power of two, and heads of 64 in groups of three.
ODD = {
    "hidden_size": 192,
    "intermediate_size": 448,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "max_position_embeddings": 1024,
}
COUNT = 330
TOKENS = [(37 * i * i + 11 * i) % 320 for i in range(COUNT)]
WIDTHS = {"q_proj": 192, "k_proj": 64, "v_proj": 64}
COMPENSATED = {
    **{f"model.layers.0.self_attn.{name}": (rows, 192, 8, 16) for name, rows in WIDTHS.items()},
    "model.layers.0.self_attn.o_proj": (192, 192, 20, 8),
    "model.layers.0.mlp.up_proj": (448, 192, 16, 0),
    "model.layers.0.mlp.down_proj": (192, 448, 4, 4),
    "model.layers.1.self_attn.v_proj": (64, 192, 11, 0),
    "model.layers.1.mlp.gate_proj": (448, 192, 4, 3),
}
DTYPES = {"float32": 2e-4, "float16": 2e-3, "bfloat16": 2e-2}
"""Compute type to the error that a model of any depth may have beside three times the processor's."""


@pytest.fixture
def load(tiny_checkpoint, tiny_artefact, add_compensators):
    """``load(scheme)(device, dtype) -> engine``; no scheme = full precision."""

    def choose(scheme=None, architecture="llama", **changes):
        folder = tiny_checkpoint(architecture, **(ODD | changes))
        if scheme is not None:
            folder = tiny_artefact(folder, scheme)
            add_compensators(folder, COMPENSATED)
        variants = ("fp16",) if scheme is None else ("w4", "w4+ec")

        def make(device, dtype):
            checkpoint = open_checkpoint(str(folder))
            model = load_model(
                checkpoint,
                ModelSettings(path="tiny", dtype=dtype, device=device, allow_batch_variance=device == "cpu"),
                KvCacheSettings(page_count=192),
                config=checkpoint.config,
                load_weights=lambda dtype, device: load_variants(
                    checkpoint,
                    variants=variants,
                    dtype=dtype,
                    device=device,
                    keep_four_bits=device.type == "cuda",
                ),
            )
            assert model.batch_invariant or device == "cpu"
            return model.engine

        return make

    return choose


def logits(engine, variant, cuts=()):
    """float32 ``(COUNT, V)`` on the processor, computed from cut to cut on scattered pages."""
    pages = [(17 * page + 5) % 128 for page in range(32)]
    rows = []
    for start, end in zip([0, *cuts], [*cuts, COUNT], strict=True):
        segment = Segment(pages=pages, start=start, count=end - start)
        weights = engine.variants[variant]
        rows.append(engine.decoder.forward(weights, [segment], TOKENS[start:end], range(end - start)).logits)
    return torch.cat(rows).cpu()


def error(got, expected):
    return float((got - expected).norm() / expected.norm())


@pytest.mark.parametrize(
    ("architecture", "changes", "dtype"),
    [
        ("llama", {}, "float32"),
        ("llama", {}, "float16"),
        ("llama", {}, "bfloat16"),
        ("qwen2", {"num_key_value_heads": 3}, "bfloat16"),
        ("qwen3", {"tie_word_embeddings": True}, "bfloat16"),
        ("mistral", {"sliding_window": 100}, "bfloat16"),
    ],
)
def test_full_precision_is_that_of_the_processor(load, architecture, changes, dtype):
    make = load(None, architecture, **changes)
    truth = logits(make("cpu", "float32"), "fp16")
    allowed = 3 * error(logits(make("cpu", dtype), "fp16"), truth) + DTYPES[dtype]
    engine = make("cuda", dtype)
    found = error(logits(engine, "fp16", [200, 205, 222]), truth)
    print(f"{architecture} {dtype}: relative error {found:.2e}, allowed {allowed:.2e}")
    assert found < allowed
    engine.decoder.products.check_integrity()


@pytest.mark.parametrize(("scheme", "dtype"), [("channel", "bfloat16"), ("group32", "float16")])
def test_quantised_variants_are_those_of_the_processor(load, scheme, dtype):
    make = load(scheme)
    exact, rounded, engine = make("cpu", "float32"), make("cpu", dtype), make("cuda", dtype)
    for variant in ("w4", "w4+ec"):
        truth = logits(exact, variant)
        allowed = 3 * error(logits(rounded, variant), truth) + DTYPES[dtype]
        found = error(logits(engine, variant, [200, 205, 222]), truth)
        print(f"{scheme} {variant} {dtype}: relative error {found:.2e}, allowed {allowed:.2e}")
        assert found < allowed
    assert error(logits(engine, "w4"), logits(engine, "w4+ec")) > 0.01, "compensators change nothing"
    engine.decoder.products.check_integrity()


@pytest.mark.parametrize(
    ("scheme", "dtype"), [(None, "bfloat16"), ("channel", "bfloat16"), ("group32", "float16")]
)
def test_no_chunk_and_no_neighbour_changes_a_bit(load, scheme, dtype):
    engine = load(scheme)("cuda", dtype)
    for variant, weights in engine.variants.items():
        whole = logits(engine, variant)
        for cuts in ([1, 18, 35, 99], [300, *range(310, 330)], [64, 65, 70, 87, 104, 232]):
            assert torch.equal(logits(engine, variant, cuts), whole), cuts
        mine = [(17 * page + 5) % 128 for page in range(32)]
        free = sorted(set(range(128)) - set(mine))
        parts = [
            Segment(pages=free[:8], start=0, count=100),
            Segment(pages=mine, start=COUNT - 6, count=6),
            *(Segment(pages=free[8 + i : 9 + i], start=0, count=i % 5 + 1) for i in range(40)),
        ]
        tokens = [*TOKENS[:100], *TOKENS[-6:], *[7] * (sum(part.count for part in parts) - 106)]
        beside = engine.decoder.forward(weights, parts, tokens, range(100, 106)).logits.cpu()
        assert torch.equal(beside, whole[-6:])


def test_a_step_of_more_rows_than_a_pass_takes_is_the_same_step(load):
    engine = load(None)("cuda", "bfloat16")
    weights = engine.variants["fp16"]
    each = [Segment(pages=range(10 * i, 10 * i + 10), start=0, count=150) for i in range(18)]
    assert MAX_ROWS // 150 == 13  # the sequence that is cut in two
    tokens = [TOKENS[i % COUNT] for i in range(150 * len(each))]
    ends = range(149, len(tokens), 150)
    together = engine.decoder.forward(weights, each, tokens, ends).logits
    for index in (1, 13, 17):
        own = tokens[150 * index : 150 * index + 150]
        alone = engine.decoder.forward(weights, [each[index]], own, [149]).logits
        assert torch.equal(alone[0], together[index])


def test_what_a_scheduler_plans_with_can_be_measured(load):
    engine = load("group32")("cuda", "float16")
    entries = profile_engine(engine, "w4+ec", rows=[1, 8], contexts=[64])
    assert {entry.op for entry in entries} == {"linear", "attention", "head", "overhead"}
    assert all(entry.median_us >= 0 for entry in entries)
    assert any(entry.rank for entry in entries)
    engine.decoder.products.check_integrity()
