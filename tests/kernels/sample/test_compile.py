"""Sampling kernels compile for Hopper without spills, with few registers where many run, with wide loads."""

from pathlib import Path

import pytest

pytest.importorskip("triton")

SPLITS = {"V": 152_064, "BLOCK": 4096}
ROW = {"V": 152_064, "BLOCK_SPLITS": 64}
GROUPS = {"FILTERED": True, "GROUP": 128, "SPLIT_GROUPS": 32, "BLOCK_GROUPS": 2048}
KERNELS = {
    # module, kernel, constants, warps, stages, registers
    "scan": ("scan", "scan", SPLITS | {"GROUP": 128}, 8, 3, 80),
    "merge": ("scan", "merge", ROW | GROUPS | {"HAS_EDITS": False}, 4, 3, 128),
    "merge of edits": ("scan", "merge", ROW | GROUPS | {"HAS_EDITS": True}, 4, 3, 128),
    "first narrowing": ("bracket", "narrow", SPLITS | ROW | {"ROUND": 0}, 8, 3, 128),
    "second narrowing": ("bracket", "narrow", SPLITS | ROW | {"ROUND": 1}, 8, 3, 128),
    "collect": ("collect", "collect", SPLITS | {"GROUP": 128}, 8, 3, 80),
    "cut": ("cut", "cut", SPLITS | ROW, 8, 3, 255),  # one program a row
    "draw": ("draw", "draw", SPLITS | {"FILTERED": False}, 8, 3, 64),
    "draw of a cut": ("draw", "draw", SPLITS | {"FILTERED": True}, 8, 3, 64),
    "finish": ("draw", "finish", ROW | {"HAS_EDITS": True}, 4, 3, 64),
}


@pytest.fixture(scope="module")
def compiled(compile_for_hopper) -> dict[str, dict[str, int]]:
    """Facts of each kernel, compiled in a process without the interpreter."""
    work = [[f"kernels.sample.{module}", *rest[:-1]] for module, *rest in KERNELS.values()]
    return dict(
        zip(
            KERNELS,
            compile_for_hopper(Path(__file__).parents[1] / "compile_for_hopper.py", work),
            strict=True,
        )
    )


@pytest.mark.parametrize("name", KERNELS)
def test_registers_suffice(compiled, name):
    facts = compiled[name]
    assert (facts["local_memory"], facts["stack_bytes"]) == (0, 0)
    assert facts["registers"] <= KERNELS[name][-1]


@pytest.mark.parametrize("name", ["scan", "first narrowing", "collect", "draw", "draw of a cut"])
def test_loads_take_sixteen_bytes(compiled, name):
    assert compiled[name]["wide_loads"] > 0


@pytest.mark.parametrize("name", ["draw", "draw of a cut", "cut"])
def test_noise_takes_exact_logarithms(compiled, name):
    # The fast one loses every digit near 1, where the largest noise comes from.
    assert compiled[name]["fast_logarithms"] == 0
