"""The kernel for few rows has the bits of the other one. It is not interpreted, so this needs a GPU."""

import pytest
import torch

from kernels.compensator import Factors, pack_compensators
from kernels.compensator.layout import scratch_needed
from kernels.w4a16 import GpuWeight, Workspace, room_words
from kernels.w4a16.plan import FewTile, LayerPlan, Tile
from kernels.w4a16.workspace import needed

gpu = pytest.importorskip("kernels.w4a16.gpu", reason="needs Triton", exc_type=ImportError)
few_rows = pytest.importorskip("kernels.w4a16.few_rows", reason="needs Triton", exc_type=ImportError)
gated_codes = pytest.importorskip("kernels.compensator.gpu", exc_type=ImportError).gated_codes
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

TILES = [
    FewTile(rows=rows, outputs=outputs, stages=stages, early=early)
    for rows, outputs, stages, early in (
        (8, 64, 4, False),
        (8, 128, 3, True),
        (16, 64, 2, True),
        (16, 128, 4, False),
    )
]
SHAPES = [
    # outputs of the projections, inputs, group, parts, rank
    ((4096,), 4096, 128, 4, 16),
    ((1024, 256, 256), 4096, 128, 8, 16),
    ((576,), 1536, 0, 2, 27),  # filled up to 32 with codes that are zero
    ((192, 64, 64), 576, 128, 1, 16),
    ((1536, 1536), 576, 0, 4, 16),
    ((100, 60, 96), 700, 0, 2, 11),  # borders inside tiles
    ((4096,), 14336, 256, 8, 64),
]


def product(outputs, inputs, group, rank, dtype, *, bias=False):
    """A weight with compensators of random numbers."""
    count, padded = sum(outputs), -(-sum(outputs) // 64) * 64
    groups = -(-inputs // group) if group else 1
    weight = GpuWeight(
        words=torch.randint(
            -(2**31), 2**31, (padded // 64, -(-inputs // 128), 64, 16), dtype=torch.int32, device="cuda"
        ),
        scales=(torch.rand(groups, padded, device="cuda") / 100 + 0.005).to(dtype),
        bias=torch.randn(padded, dtype=dtype, device="cuda") if bias else None,
        out_features=count,
        in_features=inputs,
        group_size=group,
    )
    factors = [
        Factors(a=torch.randn(rank, inputs, device="cuda") / 64, b=torch.randn(own, rank, device="cuda") / 8)
        for own in outputs
    ]
    return weight, pack_compensators(factors, dtype)


def plan_of(parts, *few):
    tile = Tile(rows=16, outputs=64, warps=4, stages=3, split=parts)
    return LayerPlan(parts=parts, tiles=((16, tile),), dense_from=None, few=few)


def workspace(weight, compensator, *plans):
    width = compensator.code_width
    sizes = [needed(weight, plan, 16, width) for plan in plans] + [scratch_needed(width, 16)]
    return Workspace(
        torch.device("cuda"), partials=max(p for p, _ in sizes), counters=max(c for _, c in sizes)
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("outputs", "inputs", "group", "parts", "rank"), SHAPES)
def test_few_rows_have_the_bits_of_the_other_kernel(outputs, inputs, group, parts, rank, dtype):
    weight, compensator = product(outputs, inputs, group, rank, dtype, bias=True)
    other = plan_of(parts)
    x = torch.randn(16, inputs, dtype=dtype, device="cuda")
    for tile in TILES:
        if weight.padded_outputs % tile.outputs:
            continue
        few = plan_of(parts, tile)
        scratch = workspace(weight, compensator, other, few)
        for rows in (1, 2, 5, 8, 11, 16):
            own = x[:rows]
            if rows > tile.rows:
                continue
            plain = gpu.multiply(own, weight, other, scratch)
            assert torch.equal(gpu.multiply(own, weight, few, scratch), plain), (tile, rows)
            codes = gated_codes(own, compensator, scratch)
            given = {"compensator": compensator, "codes": codes}
            corrected = gpu.multiply(own, weight, other, scratch, **given)
            assert bool(corrected.isfinite().all()) and not torch.equal(corrected, plain)
            assert torch.equal(gpu.multiply(own, weight, few, scratch, **given), corrected), (tile, rows)
            inside = gpu.multiply(own, weight, few, scratch, compensator=compensator)
            assert torch.equal(inside, corrected), (tile, rows)
        scratch.check_integrity()


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_a_thousand_replays_repeat_bit_for_bit_and_leave_counters_at_zero(tile):
    weight, compensator = product((4096,), 4096, 128, 16, torch.bfloat16)
    plan = plan_of(4, tile)
    scratch = workspace(weight, compensator, plan)
    x = torch.randn(tile.rows, 4096, dtype=torch.bfloat16, device="cuda")
    expected = gpu.multiply(x, weight, plan, scratch, compensator=compensator)
    ys = [torch.empty_like(expected) for _ in range(2)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for y in ys:
            room = torch.zeros(room_words(compensator, len(x)), dtype=torch.int32, device="cuda")
            few_rows.launch(x, weight, tile, 4, scratch, y, compensator, None, room)
    differing = torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(1000):
        for y in ys:
            y.fill_(torch.nan)
        graph.replay()
        for y in ys:
            differing += (y != expected).any()
    assert int(differing) == 0
    scratch.check_integrity()


def test_poisoned_scratch_and_a_row_of_nan_stay_where_they_are():
    weight, compensator = product((1024, 256, 256), 4096, 128, 16, torch.float16)
    plan = plan_of(4, TILES[0])
    scratch = workspace(weight, compensator, plan)
    x = torch.randn(8, 4096, dtype=torch.float16, device="cuda")
    expected = gpu.multiply(x, weight, plan, scratch, compensator=compensator)
    scratch.partials(4 * weight.padded_outputs * 8).fill_(torch.nan)
    spoiled = x.clone()
    spoiled[3] = torch.nan
    y = gpu.multiply(spoiled, weight, plan, scratch, compensator=compensator)
    assert bool(y[3].isnan().all())
    others = [row for row in range(8) if row != 3]
    assert torch.equal(y[others], expected[others])
    scratch.check_integrity()
