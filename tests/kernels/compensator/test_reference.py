import math

import pytest
import torch

from kernels.compensator import GateWeights, compensate


def random(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def random_gate(hidden: int, rank: int) -> GateWeights:
    return (
        random(hidden, rank, seed=1),
        random(hidden, seed=2),
        random(rank, hidden, seed=3),
        random(rank, seed=4),
    )


def test_without_a_gate_it_is_a_low_rank_product() -> None:
    x, a, b = random(3, 10, seed=5), random(2, 10, seed=6), random(7, 2, seed=7)
    torch.testing.assert_close(compensate(x, a, b), x @ (b @ a).T)


def test_it_follows_the_formula_element_by_element() -> None:
    x, a, b = random(2, 5, seed=5), random(3, 5, seed=6), random(4, 3, seed=7)
    w1, b1, w2, b2 = random_gate(hidden=4, rank=3)
    got = compensate(x, a, b, (w1, b1, w2, b2))
    for m in range(2):
        z = [sum(float(a[r, k] * x[m, k]) for k in range(5)) for r in range(3)]
        u = [sum(float(w1[h, r]) * min(max(z[r], -8), 8) for r in range(3)) + float(b1[h]) for h in range(4)]
        s = [value / (1 + math.exp(-value)) for value in u]
        v = [sum(float(w2[r, h]) * s[h] for h in range(4)) + float(b2[r]) for r in range(3)]
        gated = [2 / (1 + math.exp(-v[r])) * z[r] for r in range(3)]
        for n in range(4):
            expected = sum(float(b[n, r]) * gated[r] for r in range(3))
            assert float(got[m, n]) == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_a_gate_that_starts_at_zero_changes_no_bit() -> None:
    x, a, b = random(3, 10, seed=5), random(4, 10, seed=6), random(7, 4, seed=7)
    w1, b1, w2, b2 = random_gate(hidden=4, rank=4)
    gate = (w1, b1, torch.zeros_like(w2), torch.zeros_like(b2))
    assert torch.equal(compensate(x, a, b, gate), compensate(x, a, b))


@pytest.mark.parametrize("bias", [-100.0, 100.0])
def test_the_gate_stays_between_zero_and_two(bias: float) -> None:
    x, a, b = random(3, 10, seed=5), random(4, 10, seed=6), random(7, 4, seed=7)
    w1, b1, w2, _ = random_gate(hidden=4, rank=4)
    got = compensate(x, a, b, (w1, b1, w2, torch.full((4,), bias)))
    limit = compensate(x, a, b) * (2.0 if bias > 0 else 0.0)
    torch.testing.assert_close(got, limit)


def test_the_gate_sees_a_limited_code_but_scales_the_raw_one() -> None:
    a, b = torch.ones(1, 1), torch.ones(1, 1)
    gate = (torch.full((1, 1), 0.1), torch.zeros(1), torch.ones(1, 1), torch.zeros(1))
    at_limit, beyond = compensate(torch.tensor([[8.0], [800.0]]), a, b, gate)
    torch.testing.assert_close(beyond, at_limit * 100)
