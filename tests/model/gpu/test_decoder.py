"""The GPU's decoder computes what the processor's computes; here through the references of its kernels."""

import pytest
import torch

from spearhead.model.attention import Segment
from spearhead.model.checkpoint import load_variants, open_checkpoint
from spearhead.model.decoder import Decoder, RowBlocks
from spearhead.model.gpu.step import MAX_ROWS, SHORT_ROWS
from spearhead.model.invariance import decoder_invariant
from spearhead.model.kv_cache import KvStorage

CPU = torch.device("cpu")
TOKENS = [(37 * i) % 320 for i in range(60)]
LAYER = "model.layers.{}."
COMPENSATED = {
    LAYER.format(0) + "self_attn.q_proj": (64, 64, 4, 6),
    LAYER.format(0) + "self_attn.v_proj": (32, 64, 18, 0),
    LAYER.format(0) + "self_attn.o_proj": (64, 64, 8, 5),
    LAYER.format(1) + "mlp.up_proj": (96, 64, 16, 3),
    LAYER.format(1) + "mlp.down_proj": (64, 96, 4, 0),
}


def on_cpu(checkpoint, variant):
    """float32 logits of TOKENS by the processor's decoder."""
    weights = load_variants(checkpoint, variants=(variant,), dtype=torch.float32, device=CPU)[variant]
    storage = KvStorage(checkpoint.config, 8, 16, torch.float32, CPU)
    decoder = Decoder(checkpoint.config, storage, context_length=128, row_blocks=RowBlocks(), device=CPU)
    segment = Segment(pages=range(8), start=0, count=len(TOKENS))
    return decoder.forward(weights, [segment], TOKENS, range(len(TOKENS))).logits


def piecewise(decoder, weights, cuts):
    """Logits of TOKENS, computed from cut to cut."""
    rows = []
    for start, end in zip([0, *cuts], [*cuts, len(TOKENS)], strict=True):
        segment = Segment(pages=(7, 2, 5, 3), start=start, count=end - start)
        rows.append(decoder.forward(weights, [segment], TOKENS[start:end], range(end - start)).logits)
    return torch.cat(rows)


@pytest.mark.parametrize(
    ("architecture", "changes"),
    [
        ("llama", {}),
        ("llama", {"tie_word_embeddings": True, "hidden_size": 96, "num_attention_heads": 6}),
        ("qwen2", {}),
        ("qwen3", {}),
        ("mistral", {"sliding_window": 9}),
    ],
)
def test_logits_are_those_of_the_processor(
    tiny_checkpoint, load_for_gpu, make_decoder, architecture, changes
):
    checkpoint = open_checkpoint(str(tiny_checkpoint(architecture, **changes)))
    weights = load_for_gpu(checkpoint, ("fp16",))["fp16"]
    decoder = make_decoder(checkpoint.config)
    expected = on_cpu(checkpoint, "fp16")
    for cuts in ([], [1, 2, SHORT_ROWS + 2, 50]):
        torch.testing.assert_close(piecewise(decoder, weights, cuts), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("scheme", ["channel", "group32"])
@pytest.mark.parametrize("variant", ["w4", "w4+ec"])
def test_quantised_variants_are_those_of_the_processor(
    tiny_checkpoint, tiny_artefact, add_compensators, load_for_gpu, make_decoder, scheme, variant
):
    folder = tiny_artefact(tiny_checkpoint("qwen2"), scheme)
    add_compensators(folder, COMPENSATED)
    checkpoint = open_checkpoint(str(folder))
    weights = load_for_gpu(checkpoint, (variant,))[variant]
    decoder = make_decoder(checkpoint.config)
    torch.testing.assert_close(
        piecewise(decoder, weights, [20, 37]), on_cpu(checkpoint, variant), rtol=1e-3, atol=1e-3
    )
    in_front = 3 if variant == "w4+ec" else 0  # q and v; up; down: each by the kernel in front
    assert decoder.products.codes_received == 3 * in_front
    assert len(decoder.products.passes) == 3
    decoder.products.own_code_rows = 20  # two of three passes
    piecewise(decoder, weights, [20, 37])
    assert decoder.products.codes_received == 4 * in_front


def test_the_order_in_which_rows_are_computed_is_not_that_of_the_result(
    tiny_checkpoint, load_for_gpu, make_decoder
):
    checkpoint = open_checkpoint(str(tiny_checkpoint("llama")))
    weights = load_for_gpu(checkpoint, ("fp16",))["fp16"]
    decoder = make_decoder(checkpoint.config)
    long = Segment(pages=(0, 1, 2, 3), start=0, count=40)
    short = Segment(pages=(4, 5), start=0, count=3)
    both = decoder.forward(weights, [long, short], TOKENS[:40] + TOKENS[50:53], [0, 39, 42]).logits
    alone = decoder.forward(weights, [long], TOKENS[:40], [0, 39]).logits
    other = decoder.forward(weights, [short], TOKENS[50:53], [2]).logits
    torch.testing.assert_close(both, torch.cat((alone, other)))


def test_a_profiler_may_look_at_more_rows_than_a_pass_takes(tiny_checkpoint, make_decoder):
    decoder = make_decoder(open_checkpoint(str(tiny_checkpoint("llama"))).config)
    rows = MAX_ROWS // 2 + 1
    step = decoder.step_of([Segment(pages=range(80), start=0, count=rows)] * 2)
    assert len(step.slots) == 2 * rows
    assert step.attention[0].rows == slice(0, 2 * rows)


def test_rows_that_are_not_finite_are_named(tiny_checkpoint, load_for_gpu, make_decoder):
    checkpoint = open_checkpoint(str(tiny_checkpoint("llama")))
    weights = load_for_gpu(checkpoint, ("fp16",))["fp16"]
    weights.embedding[TOKENS[41]] = float("nan")
    decoder = make_decoder(checkpoint.config)
    long = Segment(pages=(0, 1, 2), start=0, count=40)
    short = Segment(pages=(4, 5), start=0, count=3)
    result = decoder.forward(weights, [long, short], TOKENS[:43], [])
    assert result.finite == [True] * 41 + [False] * 2
    assert result.logits.shape == (0, checkpoint.config.vocab_size)


def test_the_start_up_proof_runs_on_this_decoder_too(tiny_checkpoint, load_for_gpu, make_decoder):
    checkpoint = open_checkpoint(str(tiny_checkpoint("llama")))
    weights = load_for_gpu(checkpoint, ("fp16",))["fp16"]
    weights.embedding.mul_(0)  # every product is exact, so the references are invariant as well
    assert decoder_invariant(make_decoder(checkpoint.config), weights)
