"""The end of a product that is cut along its inputs."""

import pytest
import torch

from kernels.compensator import compensate
from spearhead.model.parallel.ranks import ordered_sum
from spearhead.model.parallel.row_parallel import complete
from spearhead.model.weights import AfterSum, Gate, PlacedCompensator

ROWS, INPUTS, OUTPUTS = 5, 48, 24


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def part_of(tensor, ranks):
    return tensor.chunk(ranks.size, dim=1)[ranks.rank].contiguous()


def corrections(ranks, *, offset=8):
    """A gated correction of the last outputs, and this rank's part of it."""
    gate = Gate(w1=random(4, 3), b1=random(4), w2=random(3, 4), b2=random(3))
    a, b = random(3, INPUTS, seed=1), random(OUTPUTS - offset, 3, seed=2)
    return a, PlacedCompensator(
        row_offset=offset, row_count=OUTPUTS - offset, a=part_of(a, ranks), b=b, gate=gate
    )


@pytest.mark.parametrize("block_rows", [None, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_codes_travel_in_float32_beside_a_product_of_any_type(dtype, block_rows, ranked):
    x, weight = random(ROWS, INPUTS).to(dtype), random(OUTPUTS, INPUTS, seed=3).to(dtype)

    def compute(ranks):
        own = part_of(x, ranks)
        _, placed = corrections(ranks)
        after = AfterSum(bias=torch.full((OUTPUTS,), 100.0).to(dtype), compensators=(placed,))
        partial = (own.float() @ part_of(weight, ranks).float().T).to(dtype)
        return complete(ranks, partial, own, after, block_rows=block_rows)

    (alone,) = ranked(1, compute)
    first, *others = ranked(3, compute)
    assert all(torch.equal(first, other) for other in others)
    assert first.dtype == dtype
    error = (first.float() - alone.float()).abs().max()
    assert error <= (1e-5 if dtype == torch.float32 else 2**-7) * 100


def test_the_whole_is_the_product_its_bias_and_its_gated_correction(ranked):
    x, weight = random(ROWS, INPUTS), random(OUTPUTS, INPUTS, seed=3)

    def compute(ranks):
        a, placed = corrections(ranks)
        own, after = part_of(x, ranks), AfterSum(bias=random(OUTPUTS, seed=4), compensators=(placed,))
        return a, placed, complete(ranks, own @ part_of(weight, ranks).T, own, after)

    a, placed, result = ranked(2, compute)[0]
    gate = placed.gate
    expected = x @ weight.T + random(OUTPUTS, seed=4)
    expected[:, 8:] += compensate(x, a, placed.b, (gate.w1, gate.b1, gate.w2, gate.b2))
    assert torch.allclose(result, expected, rtol=1e-5, atol=1e-4)


def test_sums_are_added_from_the_first_rank_to_the_last():
    parts = [torch.tensor([2.0**24]), torch.tensor([1.0]), torch.tensor([1.0])]
    assert ordered_sum(parts).item() == 2.0**24  # each 1 is lost; the other way round both count
    assert ordered_sum(parts[::-1]).item() == 2.0**24 + 2
    assert parts[0].item() == 2.0**24


def test_no_row_is_a_product_too(ranked):
    def compute(ranks):
        after = AfterSum(compensators=(corrections(ranks)[1],))
        own = random(ROWS, INPUTS // ranks.size)[:0]
        return complete(ranks, own.new_zeros(0, OUTPUTS), own, after, block_rows=4)

    assert [tuple(result.shape) for result in ranked(2, compute)] == [(0, OUTPUTS)] * 2
