import logging

import numpy as np
import pytest
import torch
from torch import Tensor

from spearhead.errors import CalibrationError
from spearhead.quant.cka import linear_cka


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


def test_gains_offsets_and_rotations_are_not_seen() -> None:
    x = features(200, 30)
    assert abs(1 - linear_cka(x, 0.93 * x)) < 1e-12
    assert abs(1 - linear_cka(x, x + 5.0)) < 1e-12
    assert abs(1 - linear_cka(x, x @ rotation(30))) < 1e-12


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


def test_constant_features_are_alike_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    constant = torch.full((10, 3), 0.1)
    with caplog.at_level(logging.WARNING):
        assert linear_cka(constant, 7 * constant, name="blocks.3") == 1.0
    assert "blocks.3: features are the same for all tokens" in caplog.text


def test_features_that_became_constant_are_unlike() -> None:
    assert linear_cka(features(10, 3), torch.full((10, 3), 0.1)) == 0.0


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
        linear_cka(features(3, 2), features(3, 2))
