"""The kernel for few rows compiled for Hopper, without a GPU: registers, spills, instructions."""

from pathlib import Path

import pytest

pytest.importorskip("triton")

CASES = [
    # type, BM, BN, stages, G, PARTS, R, S, slices in which it computes codes itself
    ("bf16", 8, 64, 4, 128, 4, 16, 3, 16),
    ("fp16", 8, 128, 4, 128, 4, 16, 1, 0),
    ("bf16", 16, 128, 3, 0, 4, 32, 2, 16),
    ("fp16", 16, 64, 6, 256, 1, 16, 3, 16),
]


def test_the_kernel_compiles_to_warp_steps_without_spills(compile_for_hopper):
    outcomes = compile_for_hopper(Path(__file__).with_name("compile_few_rows_for_hopper.py"), CASES)
    for outcome, case in zip(outcomes, CASES, strict=True):
        assert outcome["registers"] <= 128, outcome  # four programs of four warps at once
        assert (outcome["stack_bytes"], outcome["local_memory"]) == (0, 0), outcome
        # A chunk takes eight steps for each 16 outputs and 8 rows; the loop is not unrolled.
        assert outcome["mma_sync"] >= 8 * case[2] // 64 * case[1] // 8 and outcome["wgmma"] == 0, outcome
        assert outcome["shared_bytes"] <= 227 << 10, outcome
