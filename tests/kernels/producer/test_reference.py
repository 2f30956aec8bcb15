"""Codes of projections side by side are those of each compensator alone."""

import torch

from kernels.compensator import compensate
from kernels.compensator.layout import Factors, pack_compensators
from kernels.producer import gated_codes


def test_codes_are_those_of_each_projection_alone():
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    ranks, gated = (5, 3, 9), (True, False, True)
    factors = [
        Factors(
            a=normal(rank, 40),
            b=torch.eye(rank),
            gate=(normal(4, rank), normal(4), normal(rank, 4), normal(rank)) if has_gate else None,
        )
        for rank, has_gate in zip(ranks, gated, strict=True)
    ]
    packed, x = pack_compensators(factors, torch.float32), normal(3, 40)
    codes = gated_codes(x, packed).split(packed.rank, dim=1)
    for rank, code, one in zip(ranks, codes, factors, strict=True):
        torch.testing.assert_close(code[:, :rank], compensate(x, one.a, one.b, one.gate))
        assert not code[:, rank:].any()
