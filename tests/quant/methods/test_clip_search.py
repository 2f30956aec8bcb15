from collections.abc import Callable

import pytest
import torch

from spearhead.model.quantization import QuantizationScheme
from spearhead.quant.methods.clip_search import clip_search
from spearhead.quant.methods.grid import Grid
from spearhead.quant.moments import Moments

SCHEMES = ["tensor", "channel/7", "group32", "group32/8"]


def grid(text: str) -> Grid:
    return Grid(scheme=QuantizationScheme.parse(text))


def best_by_loops(w: torch.Tensor, square: torch.Tensor, convention: float) -> tuple[float, float]:
    """The least weighted error of one row or group, and its scale, in float64."""
    tried = []
    for percent in range(100, 49, -2):
        scale = float((w.abs().max() * (percent / 100) / convention).half())
        error = 0.0
        for value, importance in zip(w.tolist(), square.tolist(), strict=True):
            code = max(-8, min(7, round(value / scale)))
            error += importance * (value - code * scale) ** 2
        tried.append((error, scale))
    return min(tried)


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("text", ["channel/7", "group32"])
def test_each_row_or_group_gets_the_factor_of_least_error(
    weight: Callable[..., torch.Tensor], moments: Callable[..., Moments], text: str, weighted: bool
) -> None:
    w, ours = weight(rows=4), grid(text)
    square = moments().mean_square.float() if weighted else torch.ones(64)
    found = clip_search(w, ours, square if weighted else None, torch.float16)
    errors = ((ours.rounded(w, found) - w) ** 2 * square).double()
    size = ours.scheme.group_size or 64
    for row in range(4):
        for group in range(64 // size):
            columns = slice(group * size, (group + 1) * size)
            least, _ = best_by_loops(w[row, columns], square[columns], ours.levels)
            assert float(errors[row, columns].sum()) == pytest.approx(least, rel=1e-4)


@pytest.mark.parametrize("text", SCHEMES)
def test_the_error_is_never_above_that_of_rounding(
    weight: Callable[..., torch.Tensor], moments: Callable[..., Moments], text: str
) -> None:
    w, ours, square = weight(), grid(text), moments().mean_square.float()

    def error(scales: torch.Tensor) -> float:
        return float(((ours.rounded(w, scales) - w) ** 2 * square).sum())

    plain = ours.scales(ours.largest(w), torch.float16)
    assert error(clip_search(w, ours, square, torch.float16)) < error(plain)


def test_one_scale_a_tensor_stays_one_scale(weight: Callable[..., torch.Tensor]) -> None:
    assert clip_search(weight(), grid("tensor"), None, torch.float16).unique().numel() == 1


@pytest.mark.parametrize("text", SCHEMES)
def test_where_no_input_occurs_nothing_is_clipped(weight: Callable[..., torch.Tensor], text: str) -> None:
    w, ours = weight(), grid(text)
    found = clip_search(w, ours, torch.zeros(64), torch.float16)
    assert torch.equal(found, ours.scales(ours.largest(w), torch.float16))


def test_zeros_keep_scale_one_and_tiny_weights_a_normal_scale() -> None:
    w = torch.zeros(2, 32)
    w[1] = 1e-7
    scales = clip_search(w, grid("channel"), None, torch.float16)
    assert scales.flatten().tolist() == [1.0, torch.finfo(torch.float16).tiny]
