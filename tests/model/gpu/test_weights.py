"""Compensators of fused projections become one, and biases go into 4-bit weights."""

import pytest
import torch

from kernels.compensator import compensate
from kernels.producer import gated_codes
from kernels.w4a16 import pack_gpu
from spearhead.model.gpu.weights import fuse_compensators, prepared
from spearhead.model.weights import Gate, LayerWeights, LinearWeights, ModelWeights, PlacedCompensator

INPUTS = 48


def placed(offset: int, rows: int, rank: int, *, gated: bool) -> PlacedCompensator:
    draw = torch.Generator().manual_seed(offset)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=draw)

    gate = Gate(w1=random(5, rank), b1=random(5), w2=random(rank, 5), b2=random(rank)) if gated else None
    return PlacedCompensator(
        row_offset=offset, row_count=rows, a=random(rank, INPUTS), b=random(rows, rank), gate=gate
    )


@pytest.mark.parametrize(
    "parts",
    [
        [(0, 20, 3, True)],
        [(20, 30, 17, False)],
        [(0, 20, 4, True), (20, 30, 16, False), (50, 14, 20, True)],
        [(0, 20, 4, False), (50, 14, 8, True)],
    ],
    ids=["first", "middle", "all", "first and last"],
)
def test_the_fused_correction_is_that_of_each_part(parts):
    total = 64
    compensators = [placed(offset, rows, rank, gated=gated) for offset, rows, rank, gated in parts]
    fused = fuse_compensators(compensators, total, torch.float32)
    assert fused is not None
    assert sum(fused.outputs) == total
    x = torch.randn(6, INPUTS, generator=torch.Generator().manual_seed(1))
    codes, correction, first = gated_codes(x, fused), torch.zeros(6, total), 0
    for place, count in enumerate(fused.outputs):
        own = codes[:, place * fused.rank : (place + 1) * fused.rank]
        correction[:, first : first + count] = own @ fused.b[first : first + count].T
        first += count
    expected = torch.zeros(6, total)
    for one in compensators:
        gate = None if one.gate is None else (one.gate.w1, one.gate.b1, one.gate.w2, one.gate.b2)
        expected[:, one.row_offset : one.row_offset + one.row_count] = compensate(x, one.a, one.b, gate)
    torch.testing.assert_close(correction, expected, rtol=1e-4, atol=1e-4)


def test_without_compensators_there_is_nothing_to_fuse():
    assert fuse_compensators((), 64, torch.float32) is None


def test_biases_move_into_four_bit_weights_and_codes_stay_shared():
    weight = pack_gpu(torch.zeros(40, INPUTS, dtype=torch.int8), torch.ones(40, 1))
    four_bit, dense = LinearWeights(weight=weight, bias=torch.ones(40)), torch.ones(40, INPUTS)
    kept = LinearWeights(weight=dense, bias=torch.ones(40), compensators=(placed(0, 40, 4, gated=False),))
    layer = LayerWeights(
        input_norm=torch.ones(INPUTS),
        post_attention_norm=torch.ones(INPUTS),
        qkv=four_bit,
        output=kept,
        gate_up=LinearWeights(weight=weight),
        down=LinearWeights(weight=dense),
    )
    model = ModelWeights(
        variant="w4",
        embedding=dense,
        layers=(layer,),
        final_norm=torch.ones(INPUTS),
        head=LinearWeights(weight=dense),
        stored_bytes=0,
    )
    ready = prepared({"w4": model}, torch.float16)["w4"].layers[0]
    assert ready.qkv.bias is None
    assert ready.qkv.weight.bias[:40].tolist() == [1] * 40
    assert ready.qkv.weight.bias[40:].tolist() == [0] * 24
    assert ready.qkv.weight.words is weight.words
    assert ready.output.bias is kept.bias
    assert ready.output.compensators == ()
    assert ready.output.gpu_compensator.a.dtype is torch.float16
    assert (ready.output.rank, ready.down.rank) == (16, 0)


def test_everything_that_a_gpu_holds_is_counted():
    weight = pack_gpu(torch.zeros(64, 128, dtype=torch.int8), torch.ones(64, 1), torch.ones(64))
    held = LinearWeights(
        weight=weight,
        gpu_compensator=fuse_compensators(
            [
                PlacedCompensator(
                    row_offset=0, row_count=64, a=torch.ones(4, 128), b=torch.ones(64, 4), gate=None
                )
            ],
            64,
            torch.float16,
        ),
    )
    model = ModelWeights(
        variant="w4+ec",
        embedding=torch.ones(2, 2),
        layers=(),
        final_norm=torch.ones(2),
        head=held,
        stored_bytes=0,
    )
    factors = 16 * 128 * 2 + 64 * 16 * 2 + 2 * 4
    assert model.resident_bytes == 16 + 8 + 64 * 64 + 64 * 4 + 64 * 4 + factors
