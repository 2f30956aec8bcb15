"""Packing of compensators for the GPU kernels."""

import pytest
import torch

from kernels.compensator import Factors, compensate, pack_compensators
from kernels.compensator.layout import write_dense_b
from kernels.compensator.naive import add_correction, gated_codes


def random(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def factors(outputs: int, rank: int, *, gated: bool, seed: int) -> Factors:
    gate = tuple(random(*shape, seed=seed) for shape in ((7, rank), (7,), (rank, 7), (rank,)))
    return Factors(
        a=random(rank, 40, seed=seed), b=random(outputs, rank, seed=seed + 1), gate=gate if gated else None
    )


PROJECTIONS = [
    factors(30, 4, gated=True, seed=1),
    factors(50, 20, gated=False, seed=2),
    factors(70, 1, gated=True, seed=3),
]


def test_projections_keep_their_own_correction() -> None:
    packed = pack_compensators(PROJECTIONS, torch.float32)
    x, y = random(3, 40, seed=9), torch.zeros(3, 150)
    add_correction(y, gated_codes(x, packed), packed)
    expected = torch.cat([compensate(x, one.a, one.b, one.gate) for one in PROJECTIONS], dim=1)
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-4)


def test_the_dense_matrix_holds_each_projection_in_its_own_columns() -> None:
    packed = pack_compensators(PROJECTIONS, torch.float32)
    codes = gated_codes(random(3, 40, seed=9), packed)
    dense, y = torch.full((150, packed.code_width), torch.nan), torch.zeros(3, 150)
    write_dense_b(packed, dense)
    add_correction(y, codes, packed)
    torch.testing.assert_close(codes @ dense.T, y)


def test_ranks_are_filled_up_to_one_tensor_core_step_or_more() -> None:
    packed = pack_compensators(PROJECTIONS, torch.bfloat16)
    assert (packed.rank, packed.segments, packed.code_width) == (32, 3, 96)
    assert packed.bounds.tolist() == [0, 30, 80, 150, 150]
    assert tuple(packed.b.shape) == (192, 32) and packed.b.dtype == torch.bfloat16
    assert pack_compensators([factors(8, 0, gated=False, seed=1)], torch.float16).rank == 16


def test_static_compensators_have_no_gate() -> None:
    assert pack_compensators(PROJECTIONS[1:2], torch.float16).gate is None


def test_shapes_that_do_not_fit_are_refused() -> None:
    broken = Factors(a=random(4, 41, seed=1), b=random(8, 4, seed=1))
    with pytest.raises(ValueError, match="projection 1: a must be"):
        pack_compensators([PROJECTIONS[0], broken], torch.float16)
    with pytest.raises(ValueError, match="no projection"):
        pack_compensators([], torch.float16)
