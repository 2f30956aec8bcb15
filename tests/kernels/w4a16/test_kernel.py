"""The fused kernel against the float32 law, and what it claims about bits."""

from dataclasses import replace

import pytest
import torch

from kernels.w4a16 import linear, pack, pack_gpu
from tests.kernels.w4a16.problems import (
    DEVICE,
    PLAIN_BOUND,
    Problem,
    interpreter_loops,
    plan,
    relative_error,
    workspace,
)

gpu = pytest.importorskip("kernels.w4a16.gpu", reason="needs Triton", exc_type=ImportError)
pytestmark = pytest.mark.skipif(not interpreter_loops(), reason="this Triton's interpreter runs no loop")

DTYPES = (torch.float16, torch.bfloat16)
PROJECTIONS = ((100, 4, False), (28, 16, False), (128, 8, False))  # borders inside tiles and between them


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("rows", "outputs", "inputs", "groups", "split", "width"),
    [
        (1, 64, 128, 1, 1, 64),
        (3, 100, 576, 1, 2, 64),  # K = 4.5 chunks, N = 1.6 tiles
        (17, 192, 640, 20, 4, 64),  # groups of 32, parts of unequal length
        (5, 128, 576, 9, 2, 128),  # groups of 64, the last chunk half empty
        (33, 128, 512, 4, 2, 128),  # groups of 128
        (2, 64, 768, 3, 4, 64),  # groups of 256
        (16, 63, 100, 1, 1, 64),
        (3, 64, 17, 1, 1, 64),
    ],
)
def test_results_follow_the_law(dtype, rows, outputs, inputs, groups, split, width):
    problem = Problem(rows=rows, outputs=outputs, inputs=inputs, groups=groups, dtype=dtype, biased=rows == 3)
    layer = plan(16, width, split)
    scratch = workspace(problem, layer)
    y = gpu.multiply(problem.x, problem.weight(), layer, scratch)
    assert relative_error(y, problem.expected()) < PLAIN_BOUND[dtype]
    scratch.check_integrity()


@pytest.mark.parametrize("groups", [1, 3, 12])
def test_a_row_has_the_same_bits_in_any_batch(groups):
    projections = ((40, 4, True), (24, 16, False))
    whole = Problem(rows=64, outputs=64, inputs=384, groups=groups, projections=projections)
    weight, compensator = whole.weight(), whole.compensator()
    draw = torch.Generator().manual_seed(1)
    codes = torch.randn(2, 64, compensator.code_width, generator=draw).to(DEVICE)
    layer = plan(split=2)
    scratch = workspace(whole, layer)

    def multiply(first, count):
        part = slice(first, first + count)
        own = {"compensator": compensator, "codes": codes[:, part].contiguous()}
        return gpu.multiply(whole.x[part], weight, layer, scratch, **own)

    y = multiply(0, 64)
    for first, count in ((0, 1), (0, 3), (0, 8), (47, 17)):
        assert torch.equal(multiply(first, count), y[first : first + count])


@pytest.mark.parametrize("groups", [1, 4])
def test_tiles_of_any_size_give_the_same_bits(groups):
    # Small whole numbers and scales that are powers of two: sums are exact in any order of one chunk, so what
    # is compared is the kernel's own order, not that of the matrix library under the interpreter.
    problem = Problem(rows=17, outputs=256, inputs=512, groups=groups, projections=PROJECTIONS)
    weight = pack_gpu(problem.codes.to(DEVICE), problem.scales.log2().round().exp2().to(DEVICE))
    x = (problem.x * 4).round()
    compensator = problem.compensator()
    codes = torch.randn(3, 17, compensator.code_width, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    layers = [
        plan(16, 64, 4),
        plan(16, 256, 4),
        plan(32, 128, 2, parts=4),  # fewer programs, the same tree of sums
        plan(64, 64, 1, parts=4),
        plan(16, 256, 1, parts=4),
    ]
    outcomes = [
        gpu.multiply(x, weight, layer, workspace(problem, layer), compensator=compensator, codes=codes)
        for layer in layers
    ]
    assert all(torch.equal(outcome, outcomes[0]) for outcome in outcomes)


def test_per_channel_scales_give_the_bits_of_equal_scales_per_group():
    problem = Problem(rows=5, outputs=64, inputs=512)
    layer = plan(split=2)
    outcomes = [
        gpu.multiply(
            problem.x,
            pack_gpu(problem.codes.to(DEVICE), problem.scales.repeat(1, groups).to(DEVICE)),
            layer,
            workspace(problem, layer),
        )
        for groups in (1, 2, 4)
    ]
    assert all(torch.equal(outcome, outcomes[0]) for outcome in outcomes)


def test_both_types_give_the_same_whole_numbers():
    problem = Problem(rows=3, outputs=64, inputs=128)
    scales = torch.full((64, 1), 0.25, dtype=torch.float16)
    weight, layer = pack_gpu(problem.codes.to(DEVICE), scales.to(DEVICE)), plan(split=1)
    x = problem.x.round().clamp(
        -1, 1
    )  # sums stay below 256, which bfloat16 holds exactly in quarters up to 64
    x[:, 8:] = 0
    expected = linear(x.cpu(), pack(problem.codes), scales)
    for dtype in DTYPES:
        y = gpu.multiply(x.to(DEVICE, dtype), weight, layer, workspace(problem, layer))
        assert torch.equal(y.cpu().float(), expected)


@pytest.mark.parametrize("groups", [1, 3, 6, 12])
def test_every_input_meets_its_own_code_and_scale(groups):
    problem = Problem(rows=384, outputs=64, inputs=384, groups=groups)
    layer = plan(128, 64, 2)
    one_hot = torch.eye(384, dtype=torch.float16, device=DEVICE)
    y = gpu.multiply(one_hot, problem.weight(), layer, workspace(problem, layer))
    assert torch.equal(
        y.cpu().float(), linear(one_hot.cpu(), pack(problem.codes), problem.scales).half().float()
    )


def test_no_rows_give_no_rows_without_a_launch():
    problem = Problem(rows=0, outputs=64, inputs=128)
    layer = plan()
    y = gpu.multiply(problem.x, problem.weight(), layer, workspace(replace(problem, rows=1), layer))
    assert y.shape == (0, 64)


def test_runs_repeat_bit_for_bit_and_leave_counters_at_zero():
    problem = Problem(rows=17, outputs=128, inputs=640)
    layer = plan(split=4)
    scratch = workspace(problem, layer)
    outcomes = [gpu.multiply(problem.x, problem.weight(), layer, scratch) for _ in range(3)]
    assert all(torch.equal(outcome, outcomes[0]) for outcome in outcomes)
    scratch.check_integrity()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_not_a_number_stays_in_its_row():
    problem = Problem(rows=3, outputs=64, inputs=256)
    layer, x = plan(), problem.x.clone()
    x[1, 7] = torch.nan
    y = gpu.multiply(x, problem.weight(), layer, workspace(problem, layer))
    assert [bool(row.isfinite().all()) for row in y] == [True, False, True]
    assert bool(y[1].isnan().all())


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(2, 128, device=DEVICE), "float16 or bfloat16"),
        (torch.zeros(2, 64, dtype=torch.float16, device=DEVICE), r"\(M, 128\)"),
        (torch.zeros(128, 2, dtype=torch.float16, device=DEVICE).T, "contiguous"),
        (torch.zeros(257, dtype=torch.float16, device=DEVICE)[1:].view(2, 128), "16-byte aligned"),
    ],
)
def test_inputs_that_the_kernel_cannot_take_are_refused(x, message):
    problem = Problem(rows=2, outputs=64, inputs=128)
    layer = plan()
    with pytest.raises(ValueError, match=message):
        gpu.multiply(x, problem.weight(), layer, workspace(problem, layer))


def test_a_workspace_that_is_too_small_is_refused():
    problem = Problem(rows=2, outputs=64, inputs=256)
    scratch = workspace(Problem(rows=1, outputs=64, inputs=128), plan(split=1))
    with pytest.raises(ValueError, match="room for 8192 partial sums, not 16384"):
        gpu.multiply(problem.x.repeat(64, 1), problem.weight(), plan(split=2), scratch)
