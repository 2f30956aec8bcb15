from collections.abc import Callable

import pytest
import torch

from spearhead.model.quantization import QuantizationScheme
from spearhead.quant.methods.gptq import gptq, inverse_factor
from spearhead.quant.methods.grid import Grid
from spearhead.quant.methods.weight_error import squared_error
from spearhead.quant.moments import Moments

Weights = Callable[..., torch.Tensor]
Inputs = Callable[..., Moments]


def grid(text: str) -> Grid:
    return Grid(scheme=QuantizationScheme.parse(text))


def scales_of(w: torch.Tensor, g: Grid) -> torch.Tensor:
    return g.scales(g.largest(w), torch.float16)


def optimal_brain_quantization(
    w: torch.Tensor, scales: torch.Tensor, second: torch.Tensor, order: list[int], damping: float
) -> torch.Tensor:
    """Row by row in float64, with the inverse of what is still open computed anew for every input."""
    w, second = w.double().clone(), second.double()
    rows, columns = w.shape
    hessian = second + damping * second.diagonal().mean() * torch.eye(columns, dtype=torch.float64)
    codes = torch.zeros(rows, columns, dtype=torch.int8)
    for row in range(rows):
        remaining = list(order)
        while remaining:
            inverse = torch.linalg.inv(hessian[remaining][:, remaining])
            k = remaining[0]
            scale = float(scales[row, k * scales.shape[1] // columns])
            code = max(-8, min(7, round(float(w[row, k]) / scale)))
            codes[row, k] = code
            error = (float(w[row, k]) - code * scale) / float(inverse[0, 0])
            for place, j in enumerate(remaining):
                w[row, j] -= error * float(inverse[0, place])
            remaining.pop(0)
    return codes


@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
def test_codes_are_those_of_one_by_one_elimination(
    weight: Weights, moments: Inputs, groups: int, act_order: bool
) -> None:
    w, second = weight(8, 16), moments(16, tokens=60).second
    halves = w.reshape(8, groups, -1).abs().amax(2)
    scales = (halves / 7.5).half()
    order = torch.argsort(second.diagonal(), descending=True).tolist() if act_order else list(range(16))
    expected = optimal_brain_quantization(w, scales, second, order, 0.01)
    assert torch.equal(gptq(w, grid("channel"), scales, second, act_order=act_order), expected)


@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize("text", ["tensor", "channel/7", "group32", "group128/8"])
def test_the_output_error_falls_well_below_that_of_rounding(
    weight: Weights, moments: Inputs, text: str, act_order: bool
) -> None:
    w, second, g = weight(40, 256), moments(256, tokens=600).second, grid(text)
    scales = scales_of(w, g)
    codes = gptq(w, g, scales, second, act_order=act_order)
    assert codes is not None
    wide = scales.float().repeat_interleave(256 // scales.shape[1], dim=1)
    error = squared_error(w - codes * wide, second)
    assert error < 0.7 * squared_error(w - g.rounded(w, scales), second)


def test_inputs_that_never_occur_are_rounded_to_nearest(weight: Weights, moments: Inputs) -> None:
    w, second, g = weight(), moments().second.clone(), grid("group32")
    dead = [3, 40]
    second[dead], second[:, dead] = 0, 0
    scales = scales_of(w, g)
    codes = gptq(w, g, scales, second)
    assert codes is not None
    assert torch.equal(codes[:, dead], g.codes(w, scales)[:, dead])


@pytest.mark.parametrize("tokens", [1, 5])
def test_moments_without_full_rank_and_doubled_inputs_are_damped(
    weight: Weights, moments: Inputs, tokens: int
) -> None:
    w, second, g = weight(), moments(tokens=tokens).second.clone(), grid("channel")
    second[7], second[:, 7] = second[6], second[:, 6]
    second[7, 7] = second[6, 6]
    scales = scales_of(w, g)
    codes = gptq(w, g, scales, second)
    assert codes is not None
    error = squared_error(w - codes * scales.float(), second)
    assert error <= squared_error(w - g.rounded(w, scales), second)


def test_damping_grows_until_the_factorisation_succeeds() -> None:
    second = torch.eye(4, dtype=torch.float64)
    second[0, 1] = second[1, 0] = 1.05  # an eigenvalue of -0.05
    upper = inverse_factor(second, 0.01)
    assert upper is not None
    damped = torch.linalg.inv(upper.T @ upper)
    torch.testing.assert_close(damped, second + 0.1 * torch.eye(4, dtype=torch.float64))


def test_moments_that_no_damping_mends_give_nothing(weight: Weights) -> None:
    second = torch.eye(64, dtype=torch.float64)
    second[0, 1] = second[1, 0] = 9.0
    w, g = weight(), grid("channel")
    assert gptq(w, g, scales_of(w, g), second) is None


def test_all_inputs_dead_is_plain_rounding(weight: Weights) -> None:
    w, g = weight(), grid("channel")
    scales = scales_of(w, g)
    codes = gptq(w, g, scales, torch.zeros(64, 64, dtype=torch.float64))
    assert codes is not None
    assert torch.equal(codes, g.codes(w, scales))
