import numpy as np
import pytest
import scipy.linalg
import torch

from spearhead.quant.low_rank import (
    LowRank,
    l2qer_scale,
    loftq,
    output_error,
    qera_approx_scale,
    qera_exact,
    scaled_svd,
)
from spearhead.quant.moments import Moments, MomentsAccumulator


def inputs(width: int, count: int = 400, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(width, width, generator=generator, dtype=torch.float64)
    return torch.randn(count, width, generator=generator, dtype=torch.float64) @ mixing


def moments_of(x: torch.Tensor) -> Moments:
    return Moments(
        count=len(x),
        second=x.T @ x / len(x),
        mean_abs=x.abs().mean(0),
        peak_mean_abs=x.abs().mean(0),
        peak_abs=x.abs().amax(0),
    )


def error_of(outputs: int, inputs: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def left_over(error: torch.Tensor, found: LowRank, x: torch.Tensor) -> float:
    return float(((error - found.b.double() @ found.a.double()) @ x.T).square().sum() / len(x))


@pytest.mark.parametrize(("outputs", "width"), [(12, 20), (20, 12), (16, 16)])
@pytest.mark.parametrize("rank", [1, 3, 8])
def test_the_exact_form_is_the_best_of_its_rank(outputs: int, width: int, rank: int) -> None:
    x, error = inputs(width), error_of(outputs, width)
    # Independent oracle: truncate the SVD of E R^(1/2), computed with scipy, and divide the root out again.
    root = scipy.linalg.sqrtm((x.T @ x / len(x)).numpy()).real
    u, s, vt = np.linalg.svd(error.numpy() @ root, full_matrices=False)
    best = (u[:, :rank] * s[:rank]) @ vt[:rank] @ np.linalg.inv(root)
    found = qera_exact(error, moments_of(x), rank)
    np.testing.assert_allclose(found.b.double() @ found.a.double(), best, rtol=2e-4, atol=2e-4)
    assert left_over(error, found, x) == pytest.approx(float((s[rank:] ** 2).sum()), rel=1e-4)
    assert found.residual(rank) == pytest.approx(float((s[rank:] ** 2).sum() / (s**2).sum()), rel=1e-6)


def test_the_code_is_white_on_the_calibration_tokens() -> None:
    x = inputs(20)
    found = qera_exact(error_of(12, 20), moments_of(x), 4)
    code = x @ found.a.double().T
    torch.testing.assert_close(
        code.T @ code / len(x), torch.eye(4, dtype=torch.float64), rtol=1e-4, atol=1e-4
    )


def test_no_gate_on_the_exact_form_can_lower_any_tokens_output_error() -> None:
    x, error = inputs(20), error_of(12, 20)
    found = qera_exact(error, moments_of(x), 4)
    a, b = found.a.double(), found.b.double()
    code, wanted = x @ a.T, x @ error.T
    # The best coefficients of each token, by least squares on its own error.
    best = torch.linalg.lstsq(b, wanted.T).solution.T
    torch.testing.assert_close(best, code, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("count", [3, 9])
@pytest.mark.parametrize(("outputs", "width"), [(12, 20), (20, 12)])
def test_fewer_tokens_than_inputs_and_dead_inputs_do_no_harm(count: int, outputs: int, width: int) -> None:
    x, error = inputs(width, count), error_of(outputs, width)
    x[:, 3] = 0
    x[:, 5] = x[:, 4]
    found = qera_exact(error, moments_of(x), 6)
    assert torch.isfinite(found.a).all()
    assert torch.isfinite(found.b).all()
    assert len(found.a) == min(6, count)
    assert left_over(error, found, x) <= left_over(error, qera_exact(error, moments_of(x), 1), x) + 1e-9


@pytest.mark.parametrize(("outputs", "width"), [(12, 20), (20, 12)])
def test_nothing_is_left_to_remove_beyond_the_rank_of_the_error(outputs: int, width: int) -> None:
    error = error_of(outputs, 3) @ error_of(3, width, seed=2)
    for found in (qera_exact(error, moments_of(inputs(width)), 8), scaled_svd(error, None, 8)):
        assert len(found.a) == 3
        assert found.residual(2) > 0
        assert found.residual(3) == 0


def test_no_error_needs_no_correction() -> None:
    found = qera_exact(torch.zeros(4, 6), moments_of(inputs(6)), 2)
    assert found.a.shape == (0, 6)
    assert found.b.shape == (4, 0)
    assert found.residual(0) == 0


def test_the_methods_rank_as_their_objectives_say() -> None:
    x, error = inputs(20), error_of(12, 20)
    moments = moments_of(x)
    plain = left_over(error, scaled_svd(error, None, 4), x)
    approx = left_over(error, scaled_svd(error, qera_approx_scale(moments), 4), x)
    l2qer = left_over(error, scaled_svd(error, l2qer_scale(moments), 4), x)
    exact = left_over(error, qera_exact(error, moments, 4), x)
    assert exact < min(plain, approx, l2qer)
    assert max(plain, approx, l2qer, exact) < output_error(error, moments)


def test_the_scaled_svd_is_the_best_of_its_scaled_norm() -> None:
    error, scale = error_of(12, 20), torch.rand(20, dtype=torch.float64) + 0.1
    found = scaled_svd(error, scale, 3)
    left = (error - found.b.double() @ found.a.double()) * scale
    values = torch.linalg.svdvals(error * scale)
    assert float(left.square().sum()) == pytest.approx(float(values[3:].square().sum()), rel=1e-5)


def test_loftq_comes_closer_to_the_weights_than_one_round() -> None:
    weight = error_of(24, 32).float()

    def coarse(w: torch.Tensor) -> torch.Tensor:
        return torch.round(w * 2) / 2

    def distance(rounds: int) -> float:
        quantized, correction = loftq(weight, coarse, 8, iterations=rounds)
        return float((weight - quantized - correction.b @ correction.a).norm())

    assert distance(5) < distance(1)


def test_loftq_rounds_once_a_round() -> None:
    rounded: list[torch.Tensor] = []

    def coarse(w: torch.Tensor) -> torch.Tensor:
        rounded.append(w)
        return torch.round(w * 2) / 2

    loftq(error_of(6, 8).float(), coarse, 2, iterations=3)
    assert len(rounded) == 3


def test_moments_add_up_over_batches() -> None:
    x = inputs(6, 40).float()
    accumulator = MomentsAccumulator("m", 6, torch.device("cpu"))
    for part in (x[:25], x[25:]):
        accumulator.add(part[None], torch.ones(1, len(part), dtype=torch.bool))
    found = accumulator.finish()
    torch.testing.assert_close(found.second, moments_of(x.double()).second, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(
        found.peak_mean_abs, torch.maximum(x[:25].abs().mean(0), x[25:].abs().mean(0)).double()
    )
