"""The fused kernel compiled for Hopper, without a GPU: registers, spills and the instructions meant."""

from pathlib import Path

import pytest

pytest.importorskip("triton")

CASES = [
    # type, BM, BN, warps, stages, registers, G, PARTS, SPLIT, R, S, slices in which it computes codes itself
    ("bf16", 16, 128, 4, 4, 128, 128, 4, 4, 16, 1, 0),
    ("fp16", 16, 64, 4, 4, 128, 0, 8, 8, 16, 4, 0),
    ("bf16", 64, 128, 8, 4, 255, 128, 4, 2, 16, 1, 0),
    ("fp16", 16, 128, 4, 4, 128, 128, 4, 4, 16, 3, 0),
    ("fp16", 16, 64, 4, 4, 128, 64, 4, 4, 16, 2, 0),
    ("bf16", 16, 64, 4, 4, 128, 32, 4, 2, 16, 3, 0),
    ("bf16", 16, 128, 4, 4, 128, 128, 4, 4, 16, 3, 16),
    ("fp16", 64, 128, 8, 4, 255, 128, 2, 1, 16, 2, 16),
    ("bf16", 64, 128, 8, 4, 255, 128, 4, 4, 16, 3, 16),
]


def test_the_kernel_compiles_to_tensor_core_code_without_spills(compile_for_hopper):
    outcomes = compile_for_hopper(Path(__file__).with_name("compile_for_hopper.py"), CASES)
    for outcome, case in zip(outcomes, CASES, strict=True):
        assert outcome["registers"] <= case[5], outcome
        assert outcome["stack_bytes"] == 0, outcome
        assert outcome["wgmma"] > 0 and (outcome["mma_sync"] > 0) == (case[11] > 0), outcome  # codes: 16 rows
        assert outcome["local_memory"] == 0, outcome
        assert outcome["fences"] > 0, outcome  # written by us for Triton before 3.7, by Triton after
