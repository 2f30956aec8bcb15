"""The correction beside the product: against the float32 law, and as branches of one CUDA graph."""

import importlib

import pytest
import torch

from tests.kernels.w4a16.problems import (
    CORRECTED_BOUND,
    DEVICE,
    Problem,
    interpreter_loops,
    plan,
    relative_error,
    workspace,
)

forked = pytest.importorskip("kernels.w4a16.forked", reason="needs Triton", exc_type=ImportError)
pytestmark = pytest.mark.skipif(not interpreter_loops(), reason="this Triton's interpreter runs no loop")

PROBLEMS = [
    Problem(rows=3, outputs=128, inputs=256, groups=2, projections=((128, 16, True),)),
    Problem(
        rows=17,
        outputs=256,
        inputs=300,
        projections=((100, 4, True), (60, 16, False), (96, 8, True)),
        biased=True,
        dtype=torch.bfloat16,
    ),
]


def fork(problem: Problem, rows: int):
    return forked.Forked(
        out_features=problem.outputs,
        code_width=problem.compensator().code_width,
        rows=rows,
        dtype=problem.dtype,
        device=torch.device(DEVICE),
    )


@pytest.mark.parametrize("problem", PROBLEMS, ids=["one", "qkv"])
def test_both_halves_together_follow_the_law(problem):
    layer = plan(32)
    scratch = workspace(problem, layer)
    paths = fork(problem, problem.rows + 5)
    y = paths.multiply(problem.x, problem.weight(), layer, scratch, problem.compensator())
    # Product and correction are rounded apart, then their sum.
    assert relative_error(y, problem.expected()) < 2 * CORRECTED_BOUND[problem.dtype]


def test_codes_go_where_the_caller_wants_them_and_nowhere_else():
    problem = PROBLEMS[0]
    gated_codes = importlib.import_module("kernels.compensator.gpu").gated_codes
    scratch, compensator = workspace(problem, plan()), problem.compensator()
    room = torch.full((1, 3, 16), torch.nan, device=DEVICE)
    assert gated_codes(problem.x, compensator, scratch, room) is room
    assert torch.equal(room, gated_codes(problem.x, compensator, scratch))
    with pytest.raises(ValueError, match=r"codes has shape \(1, 4, 16\); it must be \(1, 3, 16\)"):
        gated_codes(problem.x, compensator, scratch, torch.empty(1, 4, 16, device=DEVICE))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_captured_fork_repeats_the_bits_of_a_launched_one():
    problem, layer = PROBLEMS[1], plan(32)
    scratch, paths = workspace(problem, layer), fork(problem, problem.rows)
    own = problem.weight(), layer, scratch, problem.compensator()
    x = problem.x.clone()
    expected = paths.multiply(x, *own)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = paths.multiply(x, *own)
    for _ in range(100):
        y.fill_(torch.nan)
        graph.replay()
        assert torch.equal(y, expected)
