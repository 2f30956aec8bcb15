"""The whole measurement of a small model, in Triton's interpreter, with a clock that only counts."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.kernels.w4a16.problems import DEVICE, interpreter_loops

pytest.importorskip("triton")

from kernels.profile.measure import Setup, measure
from kernels.tuning.timing import Timing
from kernels.w4a16 import Plans
from kernels.w4a16.plan import OWN_CODE_ROWS
from kernels.w4a16.shapes import ModelShape

ROOT = Path(__file__).parents[3]
SMALL = ModelShape(
    hidden_size=128,
    intermediate_size=128,
    layer_count=3,
    head_count=2,
    kv_head_count=1,
    head_dim=64,
    vocab_size=256,
)


def counting(calls) -> Timing:
    """Runs the first call, and says how many there were."""
    calls[0]()
    return Timing(median_us=float(len(calls)), p10_us=1.0, p90_us=9.0)


@pytest.fixture(scope="module")
def times():
    if not interpreter_loops():
        pytest.skip("Triton's interpreter runs no loops with this numpy")
    setup = Setup(
        model=SMALL,
        group=0,
        rank=16,
        dtype=torch.float16,
        device=torch.device(DEVICE),
        plans=Plans("none", 132, Path("nowhere")),
        rows=(1, 3, OWN_CODE_ROWS + 1),
        attention_rows=(1, 2),
        contexts=(16,),
        timer=counting,
    )
    return list(measure(setup))


def test_every_product_is_measured_plain_and_compensated(times):
    found = {(time.name, time.n, time.k, time.rank, time.rows) for time in times if time.op == "w4a16"}
    sizes = {"qkv": (256, 128, 48), "o": (128, 128, 16), "gate_up": (256, 128, 32), "down": (128, 128, 16)}
    assert found == {
        (name, n, k, rank, rows)
        for name, (n, k, width) in sizes.items()
        for rank in (0, width)
        for rows in (1, 3, OWN_CODE_ROWS + 1)
    }


def test_the_kernels_in_front_are_measured_with_codes_and_without(times):
    found = {(time.op, time.name, time.rank > 0) for time in times if time.rows > OWN_CODE_ROWS}
    assert {("rms_norm", "qkv", True), ("rms_norm", "gate_up", False), ("silu_mul", "down", True)} <= found
    assert ("codes", "o", True) in found and ("codes", "o", False) not in found


def test_no_kernel_computes_codes_in_front_of_products_that_do(times):
    found = {(time.op, time.name, time.rank > 0) for time in times if time.rows <= OWN_CODE_ROWS}
    assert {("rms_norm", "qkv", True), ("rms_norm", "qkv", False), ("silu_mul", "down", True)} <= found
    assert [time.median_us for time in times if time.op == "codes" and time.rows <= OWN_CODE_ROWS] == [0, 0]


def test_the_rest_of_a_step_is_measured(times):
    found = {(time.op, time.rows, time.context, time.calls_per_forward) for time in times}
    assert {("linear", 3, 0, 1), ("sample", 1, 0, 1), ("rope_and_cache", 3, 0, 3)} <= found
    assert ("paged_attention", 2, 16, 3) in found


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_the_command_says_where_to_run_it():
    command = [sys.executable, "-m", "kernels.profile", "--shapes", "8b"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "finds no CUDA device; a latency table is measured on the GPU that will serve" in done.stderr
