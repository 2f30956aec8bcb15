import logging
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from spearhead.errors import CalibrationError
from spearhead.quant.cka import MinibatchCka, debiased_cka, linear_cka, unbiased_hsic


def features(tokens: int, width: int, seed: int = 0) -> Tensor:
    return torch.randn(tokens, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def rotation(width: int) -> Tensor:
    return torch.linalg.qr(features(width, width, seed=99))[0]


@pytest.mark.parametrize(("tokens", "width"), [(40, 7), (7, 40), (20, 20)])
def test_cka_is_the_normalised_product_of_centred_grams(tokens: int, width: int) -> None:
    x, y = features(tokens, width, 1), features(tokens, 5, 2)
    centring = torch.eye(tokens, dtype=torch.float64) - 1 / tokens
    k, h = centring @ x @ x.T @ centring, centring @ y @ y.T @ centring
    expected = (k * h).sum() / (k.norm() * h.norm())
    assert linear_cka(x, y) == pytest.approx(float(expected), rel=1e-12)


@pytest.mark.parametrize(("tokens", "width"), [(100, 12), (12, 100)])
def test_the_same_features_are_exactly_alike(tokens: int, width: int) -> None:
    x = features(tokens, width).float()
    assert linear_cka(x, x.clone()) == 1.0
    assert debiased_cka(x, x.clone()) == 1.0


@pytest.mark.parametrize("measure", [linear_cka, debiased_cka])
def test_gains_offsets_and_rotations_are_not_seen(measure: Callable[[Tensor, Tensor], float]) -> None:
    x = features(200, 30)
    assert abs(1 - measure(x, 0.93 * x)) < 1e-12
    assert abs(1 - measure(x, x + 5.0)) < 1e-12
    assert abs(1 - measure(x, x @ rotation(30))) < 1e-12


@pytest.mark.parametrize("noise", [1e-5, 1e-4, 1e-3])
def test_small_damage_is_resolved(noise: float) -> None:
    x = features(300, 20)
    y = x + noise * features(300, 20, seed=3)
    # The oracle in extended precision.
    a, b = (np.asarray(t.numpy(), np.longdouble) for t in (x, y))
    a, b = a - a.mean(0), b - b.mean(0)
    cross, own_a, own_b = ((p.T @ q) ** 2 for p, q in ((a, b), (a, a), (b, b)))
    expected = float(1 - cross.sum() / np.sqrt(own_a.sum() * own_b.sum()))
    assert 1 - linear_cka(x, y) == pytest.approx(expected, abs=1e-14, rel=1e-6)
    assert 0.1 * noise**2 < expected < 10 * noise**2


def test_unbiased_hsic_is_the_sum_over_distinct_tokens() -> None:
    n = 6
    k, h = (f @ f.T for f in (features(n, 3, 1), features(n, 4, 2)))
    pairs = [(i, j) for i in range(n) for j in range(n) if i != j]
    pair_sum = sum(float(k[i, j] * h[i, j]) for i, j in pairs)
    triple_sum = sum(float(k[i, j] * h[i, q]) for i, j in pairs for q in range(n) if q not in (i, j))
    quad_sum = sum(float(k[i, j] * h[q, r]) for i, j in pairs for q, r in pairs if not {i, j} & {q, r})
    expected = pair_sum / math.perm(n, 2) - 2 * triple_sum / math.perm(n, 3) + quad_sum / math.perm(n, 4)
    assert unbiased_hsic(k, h) == pytest.approx(expected, rel=1e-10)


def test_few_tokens_make_unrelated_features_look_alike_unless_debiased() -> None:
    x, y = features(20, 200, 1), features(20, 200, 2)
    assert linear_cka(x, y) > 0.8
    assert debiased_cka(x, y) < 0.1


def test_minibatches_average_before_they_divide() -> None:
    sums, parts = MinibatchCka(), []
    for seed in range(3):
        x = (1 + 10 * seed) * features(30, 8, seed)
        y = x + (1 + 10 * seed) * features(30, 8, seed + 10)
        x[0] *= 40 * seed + 1  # an outlier must not change the scale of its batch alone
        sums.add(x, y)
        grams = [f @ f.T for f in (x, y)]
        parts.append([unbiased_hsic(grams[i], grams[j]) for i, j in ((0, 1), (0, 0), (1, 1))])
    cross, own_x, own_y = np.mean(parts, axis=0)
    assert sums.similarity() == pytest.approx(cross / math.sqrt(own_x * own_y), rel=1e-9)


def test_constant_features_are_alike_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    constant = torch.full((10, 3), 0.1)
    with caplog.at_level(logging.WARNING):
        assert linear_cka(constant, 7 * constant, name="blocks.3") == 1.0
    assert "blocks.3: features are the same for all tokens" in caplog.text


@pytest.mark.parametrize("measure", [linear_cka, debiased_cka])
def test_features_that_became_constant_are_unlike(measure: Callable[[Tensor, Tensor], float]) -> None:
    assert measure(features(10, 3), torch.full((10, 3), 0.1)) == 0.0


def test_large_features_do_not_overflow() -> None:
    x = features(50, 6)
    y = x + 0.1 * features(50, 6, 1)
    assert linear_cka(1e150 * x, 1e150 * y) == pytest.approx(linear_cka(x, y), rel=1e-9)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_features_that_are_not_finite_name_their_module(value: float) -> None:
    x = features(10, 3).float()
    y = x.clone()
    y[6, 1] = value
    with pytest.raises(CalibrationError, match=r"layers\.0\.up: features hold NaN .* at token 6"):
        linear_cka(x, y, name="layers.0.up")


def test_fewer_than_four_tokens_are_refused() -> None:
    with pytest.raises(CalibrationError, match="similarity of 3 tokens means nothing"):
        debiased_cka(features(3, 2), features(3, 2))
