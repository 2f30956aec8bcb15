"""The products of a loaded model, by the kernels themselves: in Triton's interpreter, or on a GPU."""

import pytest
import torch

from kernels.w4a16 import Plans, room_words
from spearhead.model.checkpoint import open_checkpoint
from spearhead.model.gpu.products import GpuLinears
from tests.kernels.w4a16.problems import interpreter_loops

pytest.importorskip("kernels.w4a16.gpu", reason="needs Triton", exc_type=ImportError)
pytestmark = [
    pytest.mark.skipif(not interpreter_loops(), reason="this Triton's interpreter runs no loop"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="whole models are compared on this GPU instead"),
]

CPU = torch.device("cpu")
LAYER = "model.layers.{}."
COMPENSATED = {
    LAYER.format(0) + "self_attn.q_proj": (64, 64, 4, 6),
    LAYER.format(0) + "self_attn.v_proj": (32, 64, 18, 0),
    LAYER.format(0) + "self_attn.o_proj": (64, 64, 8, 5),
    LAYER.format(1) + "mlp.up_proj": (96, 64, 16, 3),
}
STATIC = {
    LAYER.format(0) + "self_attn.v_proj": (32, 64, 18, 0),
    LAYER.format(0) + "self_attn.o_proj": (64, 64, 8, 0),
    LAYER.format(1) + "mlp.up_proj": (96, 64, 16, 3),
}
BOUND = 2e-3  # a few roundings to float16


@pytest.mark.parametrize("scheme", ["channel", "group32"])
def test_every_product_of_a_model_follows_the_law_and_leaves_no_counter(
    tiny_checkpoint, tiny_artefact, add_compensators, load_for_gpu, reference_linears, scheme
):
    folder = tiny_artefact(tiny_checkpoint("qwen2"), scheme)
    add_compensators(folder, COMPENSATED)
    variants = load_for_gpu(open_checkpoint(str(folder)), ("w4", "w4+ec"), torch.float16)
    linears = GpuLinears(variants.values(), Plans("Some GPU", 8), rows=40, device=CPU)
    generator = torch.Generator().manual_seed(0)
    for weights in variants.values():
        for linear in (*(part for layer in weights.layers for part in (layer.qkv, layer.output)),
                       weights.layers[1].gate_up, weights.layers[1].down, weights.head):  # fmt: skip
            for rows in (1, 40):
                x = torch.randn(rows, linear.weight.shape[1], generator=generator).half()
                y = linears.multiply(x, linear)
                expected = reference_linears.multiply(x, linear).float()
                assert (y.float() - expected).norm() < BOUND * expected.norm()
    linears.check_integrity()


def test_a_pass_makes_room_for_just_those_products_that_compute_codes(
    tiny_checkpoint, tiny_artefact, add_compensators, load_for_gpu, reference_linears, monkeypatch
):
    folder = tiny_artefact(tiny_checkpoint("llama"), "channel")
    add_compensators(folder, STATIC)
    weights = load_for_gpu(open_checkpoint(str(folder)), ("w4+ec",), torch.float16)["w4+ec"]
    linears = GpuLinears([weights], Plans("Some GPU", 8), rows=65, device=CPU)
    first, second = weights.layers
    assert linears.front(first.qkv, 64) is None and linears.front(first.output, 1) is None
    assert linears.front(first.qkv, 65) is first.qkv.gpu_compensator
    assert linears.front(second.gate_up, 1) is second.gate_up.gpu_compensator  # gates
    made: list[int] = []
    plain = torch.zeros
    monkeypatch.setattr(torch, "zeros", lambda *size, **options: made.append(size) or plain(*size, **options))
    generator = torch.Generator().manual_seed(0)
    for rows in (3, 64):
        linears.start(weights, rows)
        assert len(made) == 1
        for linear in (first.qkv, first.output):
            x = torch.randn(rows, linear.weight.shape[1], generator=generator).half()
            expected = reference_linears.multiply(x, linear).float()
            assert (linears.multiply(x, linear).float() - expected).norm() < BOUND * expected.norm()
        words = sum(room_words(one.gpu_compensator, rows) for one in (first.qkv, first.output))
        assert made == [(words,)]  # the products made none of their own
        made.clear()
    linears.check_integrity()


def test_dense_weights_take_corrections_as_well(
    tiny_checkpoint, tiny_artefact, add_compensators, load_for_gpu, reference_linears
):
    folder = tiny_artefact(tiny_checkpoint("llama"))
    add_compensators(folder, COMPENSATED)
    checkpoint = open_checkpoint(str(folder))
    variants = load_for_gpu(checkpoint, ("w4+ec",), torch.float32, four_bits=False)
    linears = GpuLinears(variants.values(), Plans("Some GPU", 8), rows=16, device=CPU)
    linear = variants["w4+ec"].layers[0].qkv
    x = torch.randn(7, 64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(
        linears.multiply(x, linear), reference_linears.multiply(x, linear), rtol=1e-4, atol=1e-4
    )
