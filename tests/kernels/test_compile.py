"""Kernels compile for Hopper as they are meant to: no spills, tensor cores where expected, wide loads."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")

CODES = {"SEGMENTS": 3, "R": 16, "BLOCK_W": 64, "H": 16, "SLICES": 8, "GATED": True}
NORM = {"K": 4096, "HAS_RESIDUAL": True, **CODES}
ATTENTION = {"H": 64, "KV": 8, "D": 128, "BLOCK_D": 128, "PAGE_SIZE": 16, "PIECE": 256, "BLOCK_KEYS": 64}
KERNELS = {
    "norm, one row": (
        "rms_norm.kernel",
        "rms_norm_kernel",
        NORM
        | {"TILE_ROWS": 1, "BLOCK_K": 4096, "BLOCK_C": 256, "STEPS": 1, "RUN": 1, "BLOCK_H": 16}
        | {"SLICES": 16, "GATED": False, "ASM": True, "OVERLAP": True},
        4,
        3,
    ),
    "norm, sixteen rows": (
        "rms_norm.kernel",
        "rms_norm_kernel",
        NORM
        | {"TILE_ROWS": 16, "BLOCK_K": 4096, "BLOCK_C": 256, "STEPS": 1, "RUN": 4, "BLOCK_H": 16}
        | {"SLICES": 16, "GATED": False, "ASM": True, "OVERLAP": True},
        4,
        3,
    ),
    **{
        f"norm of 256 columns, {rows} rows a program": (
            "rms_norm.kernel",
            "rms_norm_kernel",
            NORM
            | {
                "K": 256,
                "TILE_ROWS": rows,
                "BLOCK_K": 256,
                "BLOCK_C": 256,
                "STEPS": 1,
                "RUN": 1,
                "BLOCK_H": 16,
            }
            | {"SLICES": 1, "GATED": False, "ASM": True, "OVERLAP": True},
            4,
            3,
        )
        for rows in (1, 16)
    },
    "silu, sixteen rows": (
        "silu_mul.kernel",
        "silu_mul_kernel",
        CODES
        | {"K": 14336, "TILE_ROWS": 16, "BLOCK_C": 512, "STEPS": 1, "RUN": 1, "BLOCK_H": 16}
        | {"SEGMENTS": 1, "BLOCK_W": 16, "SLICES": 28, "GATED": False, "ASM": True, "OVERLAP": True},
        4,
        3,
    ),
    "silu, rank 64, hundreds of rows": (
        "silu_mul.kernel",
        "silu_mul_kernel",
        CODES
        | {"K": 28672, "TILE_ROWS": 16, "BLOCK_C": 256, "STEPS": 2, "RUN": 4, "R": 64, "BLOCK_H": 16}
        | {"SEGMENTS": 1, "BLOCK_W": 64, "SLICES": 56, "GATED": False, "ASM": True, "OVERLAP": True},
        4,
        3,
    ),
    "rope": (
        "rope_and_cache.kernel",
        "rope_and_cache_kernel",
        {"H": 32, "KV": 8, "D": 128, "HALF": 64, "HEADS": 8, "HAS_Q_NORM": True, "HAS_K_NORM": True},
        4,
        3,
    ),
    "attention, small tile": (
        "paged_attention.kernel",
        "attend_piece",
        ATTENTION | {"TILE_ROWS": 32, "FENCE": False},
        4,
        3,
    ),
    "attention, large tile": (
        "paged_attention.kernel",
        "attend_whole",
        ATTENTION | {"TILE_ROWS": 64, "FENCE": True},
        8,
        3,
    ),
}


@pytest.fixture(scope="module")
def compiled(compile_for_hopper) -> dict[str, dict[str, Any]]:
    """Facts of each kernel, compiled in a process without the interpreter."""
    work = [[f"kernels.{module}", *rest] for module, *rest in KERNELS.values()]
    return dict(
        zip(KERNELS, compile_for_hopper(Path(__file__).with_name("compile_for_hopper.py"), work), strict=True)
    )


@pytest.mark.parametrize("name", KERNELS)
def test_registers_suffice(compiled, name):
    assert (compiled[name]["local_memory"], compiled[name]["stack_bytes"]) == (0, 0)


@pytest.mark.parametrize("name", KERNELS)
def test_shared_memory_suffices(compiled, name):
    assert compiled[name]["shared_bytes"] <= 227 << 10


@pytest.mark.parametrize("name", ["norm, one row", "norm, sixteen rows", "silu, sixteen rows", "rope"])
def test_loads_take_sixteen_bytes(compiled, name):
    assert compiled[name]["wide_loads"] > 0


@pytest.mark.parametrize("name", ["norm, one row", "silu, sixteen rows", "attention, small tile"])
def test_few_rows_take_small_tensor_core_steps(compiled, name):
    facts = compiled[name]
    assert facts["mma_sync"] > 0 and facts["wgmma"] == 0


@pytest.mark.parametrize(
    ("alone", "among_others"),
    [
        ("norm, one row", "norm, sixteen rows"),
        ("norm of 256 columns, 1 rows a program", "norm of 256 columns, 16 rows a program"),
    ],
)
def test_a_mean_square_is_summed_in_one_order_alone_and_among_others(compiled, alone, among_others):
    assert len(compiled[alone]["row_sums"]) == 1
    assert compiled[alone]["row_sums"] == compiled[among_others]["row_sums"]


def test_many_rows_take_large_steps_behind_a_fence(compiled):
    facts = compiled["attention, large tile"]
    assert facts["wgmma"] > 0 and facts["fences"] > 0
