"""What only compiled kernels can show: bits over tiles, replays and launch options."""

from dataclasses import replace

import pytest
import torch

from kernels.compensator import Factors, pack_compensators
from kernels.w4a16 import GpuWeight, LayerPlan, Rooms, Tile, Workspace, room_words

gpu = pytest.importorskip("kernels.w4a16.gpu", reason="needs Triton", exc_type=ImportError)
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

OUTPUTS, INPUTS, PARTS = 4096, 4096, 4
TILES = [
    Tile(rows=rows, outputs=outputs, warps=warps, stages=stages, split=split, registers=registers)
    for rows, outputs, warps, stages, split, registers in (
        (16, 64, 4, 4, 4, 0),
        (16, 128, 4, 4, 4, 128),
        (16, 128, 8, 4, 2, 0),
        (32, 128, 8, 4, 4, 0),
        (32, 64, 4, 4, 1, 0),
        (64, 128, 8, 3, 2, 0),
        (64, 256, 8, 3, 4, 0),
        (128, 128, 8, 3, 1, 0),
    )
]


def weight(group_size: int) -> GpuWeight:
    groups = INPUTS // group_size if group_size else 1
    size = OUTPUTS // 64, INPUTS // 128, 64, 16
    return GpuWeight(
        words=torch.randint(-(2**31), 2**31, size, dtype=torch.int32, device="cuda"),
        scales=(torch.rand(groups, OUTPUTS, device="cuda") / 100 + 0.005).half(),
        bias=None,
        out_features=OUTPUTS,
        in_features=INPUTS,
        group_size=group_size,
    )


def workspace() -> Workspace:
    return Workspace(torch.device("cuda"), partials=PARTS * OUTPUTS * 128, counters=OUTPUTS // 64 * 8)


def run(x: torch.Tensor, held: GpuWeight, tile: Tile, scratch: Workspace) -> torch.Tensor:
    y = torch.full((len(x), OUTPUTS), torch.nan, dtype=x.dtype, device="cuda")
    gpu.launch(x, held, tile, PARTS, scratch, y, None, None)
    return y


@pytest.mark.parametrize(
    ("group_size", "dtype"),
    [(128, torch.bfloat16), (0, torch.bfloat16), (128, torch.float16), (32, torch.bfloat16)],
    ids=str,
)
def test_a_row_has_the_same_bits_in_every_tile_and_batch(group_size, dtype):
    held, scratch = weight(group_size), workspace()
    x = torch.randn(128, INPUTS, dtype=dtype, device="cuda")
    expected = run(x, held, TILES[0], scratch)
    assert bool(expected.isfinite().all())
    for tile in TILES:
        for first, rows in ((0, 1), (3, 5), (0, 16), (7, 33), (0, 64), (0, 128)):
            part = x[first : first + rows].clone()
            assert torch.equal(run(part, held, tile, scratch), expected[first : first + rows]), (tile, rows)
    scratch.check_integrity()


@pytest.mark.parametrize("tile", TILES[:3], ids=str)
@pytest.mark.parametrize("group_size", [0, 128])
def test_a_thousand_replays_repeat_bit_for_bit(group_size, tile):
    held, scratch = weight(group_size), workspace()
    x = torch.randn(16, INPUTS, dtype=torch.bfloat16, device="cuda")
    expected = run(x, held, tile, scratch)
    y = torch.empty_like(expected)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        gpu.launch(x, held, tile, PARTS, scratch, y, None, None)
    differing = torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(1000):
        y.fill_(torch.nan)
        graph.replay()
        differing += (y != expected).any()
    assert int(differing) == 0
    scratch.check_integrity()


def test_starting_under_the_kernel_in_front_changes_no_bit():
    held, scratch, tile = weight(128), workspace(), TILES[1]
    x = torch.randn(8, INPUTS, dtype=torch.bfloat16, device="cuda")
    expected = run(x, held, tile, scratch)
    overlapping = replace(tile, overlap=True)
    for _ in range(100):
        chain = [run(x, held, overlapping, scratch) for _ in range(4)]
        assert all(torch.equal(y, expected) for y in chain)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("tile", [TILES[1], TILES[4], TILES[5]], ids=str)
def test_a_thousand_replays_with_codes_of_their_own_repeat_bit_for_bit(tile, overlap):
    held, tile = weight(128), replace(tile, overlap=overlap)
    factors = Factors(
        a=torch.randn(16, INPUTS, device="cuda") / 64, b=torch.randn(OUTPUTS, 16, device="cuda") / 8
    )
    compensator = pack_compensators([factors], torch.bfloat16)
    plan = LayerPlan(parts=PARTS, tiles=((64, tile),), dense_from=None)
    scratch = Workspace.for_layers([(held, plan)], rows=64, code_width=16)
    x = torch.randn(tile.rows, INPUTS, dtype=torch.bfloat16, device="cuda")
    expected = gpu.multiply(x, held, plan, scratch, compensator=compensator)
    ys = [torch.empty_like(expected) for _ in range(2)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        rooms = Rooms(x.device)
        rooms.start(2 * room_words(compensator, len(x)))
        for y in ys:
            room = rooms.take(room_words(compensator, len(x)))
            gpu.launch(x, held, tile, PARTS, scratch, y, compensator, None, room)
    differing = torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(1000):
        for y in ys:
            y.fill_(torch.nan)
        graph.replay()
        for y in ys:
            differing += (y != expected).any()
    assert int(differing) == 0
    scratch.check_integrity()


def test_assembly_gives_the_bits_of_plain_arithmetic():
    from kernels.w4a16.kernel import w4a16_kernel

    held, scratch, tile = weight(128), workspace(), TILES[0]
    for dtype in (torch.float16, torch.bfloat16):
        # One input a row: results are single codes times scales, whichever unit multiplies.
        x = torch.eye(INPUTS, dtype=dtype, device="cuda")[::37].contiguous()
        y = run(x, held, tile, scratch)
        plain = torch.full_like(y, torch.nan)
        grid = (-(-len(x) // 16), OUTPUTS // 64, 1)
        w4a16_kernel[grid](
            x, held.words, held.scales, None, None, None, None, None, plain, None, None, len(x),
            N=OUTPUTS, NP=OUTPUTS, K=INPUTS,
            BM=16, BN=64, G=128, PARTS=1, SPLIT=1, LEVELS=0, HAS_BIAS=False, R=0, S=1, P=1, ENDS=(OUTPUTS,),
            SLICES=0, SLICE=16, BLOCK_C=16, BLOCK_W=16,
            ASM=False, FENCE=False, PDL=False, num_warps=4, num_stages=1,
        )  # fmt: skip
        assert torch.equal(y, plain)
