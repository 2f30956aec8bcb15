from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from spearhead.model.quantization import QuantizationScheme
from spearhead.quant.methods.awq import Consumer, search_input_scales
from spearhead.quant.methods.grid import Grid
from spearhead.quant.moments import Moments


def consumer(w: torch.Tensor, text: str) -> Consumer:
    return Consumer(weight=w, grid=Grid(scheme=QuantizationScheme.parse(text)))


def output_error(item: Consumer, scales: torch.Tensor, x: torch.Tensor) -> float:
    """Mean squared error over tokens, in float64 and without second moments."""
    scaled = item.weight * scales
    rounded = item.grid.rounded(scaled, item.grid.scales(item.grid.largest(scaled), torch.float16))
    difference = (x.double() / scales.double()) @ rounded.double().T - x.double() @ item.weight.double().T
    return float(difference.square().sum(1).mean())


@pytest.mark.parametrize("text", ["channel", "channel/7", "group32"])
def test_scales_lower_the_output_error_where_few_inputs_are_large(
    weight: Callable[..., torch.Tensor], text: str
) -> None:
    x = torch.randn(300, 64, generator=torch.Generator().manual_seed(3))
    x[:, [5, 50]] *= 30
    items = [consumer(weight(seed=seed), text) for seed in range(2)]
    scales = search_input_scales(items, moments_of_rows(x), 20, torch.float16)
    assert scales is not None
    assert (scales > 0).all() and scales[5] > scales[6]
    plain = sum(output_error(item, torch.ones(64), x) for item in items)
    assert sum(output_error(item, scales, x) for item in items) < 0.8 * plain


def test_nothing_is_scaled_when_nothing_is_won(weight: Callable[..., torch.Tensor]) -> None:
    x = torch.eye(64)  # all inputs alike: every exponent gives the same scales
    assert search_input_scales([consumer(weight(), "channel")], moments_of_rows(x), 20, torch.float16) is None


def test_an_input_that_never_occurs_keeps_scale_one(
    weight: Callable[..., torch.Tensor], moments: Callable[..., Moments]
) -> None:
    found = moments()
    x = torch.randn(100, 64, generator=torch.Generator().manual_seed(0)) * found.mean_abs.float()
    x[:, 9] = 0
    scales = search_input_scales([consumer(weight(), "channel")], moments_of_rows(x), 20, torch.float16)
    assert scales is not None
    assert float(scales[9]) == 1.0


def test_scaled_inputs_and_weights_stay_within_a_quarter_of_float16(
    weight: Callable[..., torch.Tensor],
) -> None:
    x = torch.randn(300, 64, generator=torch.Generator().manual_seed(3))
    x[:, 5] *= 30
    free = moments_of_rows(x)
    item = consumer(0.1 * weight(), "channel")
    peak = free.peak_abs.clone()
    peak[6] = 15_000  # a rare spike: scaling this input down would push it over the limit
    scales = search_input_scales([item], replace(free, peak_abs=peak), 20, torch.float16)
    chosen = torch.ones(64) if scales is None else scales
    limit = 0.25 * 65504
    assert float((peak / chosen).max()) <= limit
    assert float((item.weight * chosen).abs().max()) <= limit
    unbounded = search_input_scales([item], free, 20, torch.float16)
    assert unbounded is not None and float((peak / unbounded).max()) > limit


def moments_of_rows(x: torch.Tensor) -> Moments:
    absolute = x.abs().double()
    return Moments(
        count=len(x),
        second=x.double().T @ x.double() / len(x),
        mean_abs=absolute.mean(0),
        peak_mean_abs=absolute.mean(0),
        peak_abs=absolute.amax(0),
    )
