"""Parts of quantised weights are parts of what the whole weight dequantises to."""

import pytest
import torch

from spearhead.errors import CheckpointError
from spearhead.model.checkpoint import load_variants, open_checkpoint
from spearhead.model.checkpoint.compensators import Compensator
from spearhead.model.checkpoint.sharding import cut_codes, cut_compensator
from spearhead.model.parallel import Cut, plan_shards
from spearhead.model.quantization import QuantizationScheme, QuantizedWeight
from spearhead.model.weights import Gate, byte_count

ROWS, INPUTS = 12, 96
CPU = torch.device("cpu")
GENERATOR = torch.Generator().manual_seed(0)


def weight(
    groups: int, *, bits: int = 4, asymmetric: bool = False, scattered: bool = False
) -> QuantizedWeight:
    low, high = (-8, 8) if bits == 4 else (-128, 128)

    def random(low: int, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=GENERATOR)

    return QuantizedWeight(
        bits=bits,
        codes=random(low, high, ROWS, INPUTS).to(torch.int8),
        scales=torch.rand(ROWS, groups, generator=GENERATOR),
        zeros=random(low, high, ROWS, groups).to(torch.int16) if asymmetric else None,
        minimums=torch.rand(ROWS, groups, generator=GENERATOR) if asymmetric else None,
        group_index=random(0, groups, INPUTS).to(torch.int32) if scattered else None,
    )


@pytest.mark.parametrize("options", [{}, {"bits": 8}, {"asymmetric": True}, {"scattered": True}])
@pytest.mark.parametrize("groups", [1, 3])
def test_outputs_keep_their_scales(groups, options):
    whole = weight(groups, **options)
    part = cut_codes(whole, Cut(axis=0, span=range(5, 9)), "q_proj")
    assert torch.equal(part.dequantize(), whole.dequantize()[5:9])


@pytest.mark.parametrize("options", [{}, {"bits": 8}, {"asymmetric": True}])
@pytest.mark.parametrize(("groups", "span"), [(1, range(17, 50)), (3, range(32, 96)), (3, range(32))])
def test_inputs_keep_the_scales_of_their_groups(groups, span, options):
    whole = weight(groups, **options)
    part = cut_codes(whole, Cut(axis=1, span=span), "o_proj")
    assert torch.equal(part.dequantize(), whole.dequantize()[:, span.start : span.stop])
    assert part.codes.untyped_storage().nbytes() == ROWS * len(span)  # no view of the whole


@pytest.mark.parametrize("scattered", [False, True])
def test_a_cut_through_a_group_is_refused(scattered):
    span = range(32) if scattered else range(48)
    with pytest.raises(CheckpointError, match=r"down_proj has 96 inputs in 3 groups; inputs 0 to"):
        cut_codes(weight(3, scattered=scattered), Cut(axis=1, span=span), "down_proj")


def test_a_correction_is_cut_where_its_projection_is_and_its_gate_stays_whole():
    gate = Gate(w1=torch.ones(3, 2), b1=torch.ones(3), w2=torch.ones(2, 3), b2=torch.ones(2))
    whole = Compensator(a=torch.rand(2, INPUTS), b=torch.rand(ROWS, 2), gate=gate)
    outputs = cut_compensator(whole, Cut(axis=0, span=range(4, 6)))
    assert torch.equal(outputs.b, whole.b[4:6])
    assert (outputs.a, outputs.gate) == (whole.a, gate)
    inputs = cut_compensator(whole, Cut(axis=1, span=range(8, 20)))
    assert torch.equal(inputs.a, whole.a[:, 8:20])
    assert (inputs.b, inputs.gate) == (whole.b, gate)


@pytest.mark.parametrize("scheme", ["", "channel", "group32"])
def test_parts_of_all_ranks_are_the_weights_of_one_and_no_rank_keeps_another_s(scheme, tiny_checkpoint):
    checkpoint = open_checkpoint(str(tiny_checkpoint("qwen2", num_key_value_heads=4)))
    options = {"quantization": QuantizationScheme.parse(scheme)} if scheme else {}
    name = "w4" if scheme else "fp16"

    def load(shard):
        loaded = load_variants(
            checkpoint, variants=(name,), dtype=torch.float32, device=CPU, shard=shard, **options
        )
        return loaded[name]

    whole, parts = load(None), [load(shard) for shard in plan_shards(checkpoint.config, {}, 3)]
    shared = byte_count([whole.embedding, whole.head.weight, whole.final_norm])
    assert sum(part.resident_bytes - shared for part in parts) <= 1.1 * (whole.resident_bytes - shared)
    assert max(part.resident_bytes for part in parts) < whole.resident_bytes
    for index, layer in enumerate(whole.layers):
        own = [part.layers[index] for part in parts]
        assert torch.equal(torch.cat([one.output.weight for one in own], dim=1), layer.output.weight)
        assert torch.equal(torch.cat([one.down.weight for one in own], dim=1), layer.down.weight)
        gates, ups = zip(*(one.gate_up.weight.chunk(2) for one in own), strict=True)
        assert torch.equal(torch.cat([*gates, *ups]), layer.gate_up.weight)
        assert all(part.stored_bytes == whole.stored_bytes for part in parts)
