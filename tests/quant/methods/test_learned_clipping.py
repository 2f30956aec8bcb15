from collections.abc import Callable, Mapping

import pytest
import torch

from spearhead.model.quantization import QuantizationScheme
from spearhead.quant.methods.grid import Grid
from spearhead.quant.methods.learned_clipping import BlockLoss, Clippable, learn_clipping

STEPS, RATE = 100, 0.1


def clippable(w: torch.Tensor, text: str) -> Clippable:
    grid = Grid(scheme=QuantizationScheme.parse(text))
    return Clippable(weight=w, grid=grid, mean_square=torch.ones(w.shape[1]))


def with_outliers(w: torch.Tensor) -> torch.Tensor:
    w = w.clone()
    w[:, 5] = 6.0
    return w


def mean_square(true: torch.Tensor, importance: torch.Tensor) -> BlockLoss:
    def loss(weights: Mapping[str, torch.Tensor], batch: int) -> torch.Tensor:
        return ((weights["w"] - true).square() * importance).mean()

    return loss


@pytest.mark.parametrize("text", ["tensor", "channel", "group32"])
def test_an_outlier_that_no_input_reaches_is_clipped(weight: Callable[..., torch.Tensor], text: str) -> None:
    w = with_outliers(weight())
    importance = torch.ones(64)
    importance[5] = 0
    item = clippable(w, text)
    learned = learn_clipping(
        {"w": item}, mean_square(w, importance), 1, steps=STEPS, rate=RATE, scale_dtype=torch.float16
    )
    assert learned.method == "omniquant"
    assert learned.losses["omniquant"] < 0.7 * learned.losses["rtn"]
    assert learned.losses["omniquant"] < learned.losses["rtn-clip"]
    plain = item.grid.scales(item.grid.largest(w), torch.float16)
    assert (learned.scales["w"] <= plain).all() and (learned.scales["w"] < plain).any()


def test_training_starts_from_the_searched_factors(weight: Callable[..., torch.Tensor]) -> None:
    w = weight()
    item = clippable(w, "channel")
    learned = learn_clipping(
        {"w": item}, mean_square(w, torch.ones(64)), 1, steps=1, rate=1e-6, scale_dtype=torch.float32
    )
    assert learned.losses["omniquant"] == pytest.approx(learned.losses["rtn-clip"], rel=1e-2)
    assert learned.losses["rtn-clip"] < learned.losses["rtn"]


def test_factors_that_do_not_help_are_dropped() -> None:
    levels = torch.arange(-7.0, 8.0).repeat(4, 2)[:, :28]  # on the grid already: any clipping hurts
    item = clippable(levels, "channel/7")
    learned = learn_clipping(
        {"w": item},
        mean_square(levels, torch.ones(28)),
        1,
        steps=3,
        rate=RATE,
        scale_dtype=torch.float16,
    )
    assert learned.method == "rtn"
    assert torch.equal(learned.scales["w"], torch.ones(4, 1, dtype=torch.float16))


def test_all_weights_of_a_block_are_trained_on_every_batch_in_turn(
    weight: Callable[..., torch.Tensor],
) -> None:
    weights = {name: clippable(with_outliers(weight(seed=seed)), "channel") for seed, name in enumerate("ab")}
    seen: list[int] = []

    def loss(candidates: Mapping[str, torch.Tensor], batch: int) -> torch.Tensor:
        seen.append(batch)
        return sum(  # type: ignore[return-value]
            (candidates[name] - item.weight)[:, 6:].square().mean() for name, item in weights.items()
        )

    learned = learn_clipping(weights, loss, 3, steps=7, rate=RATE, scale_dtype=torch.float16)
    # Seven steps; then three kinds of scales are compared.
    assert seen == [0, 1, 2, 0, 1, 2, 0, *[0, 1, 2] * 3]
    for name, item in weights.items():
        assert (learned.scales[name] < item.grid.scales(item.grid.largest(item.weight), torch.float16)).any()


def test_a_block_of_zeros_stays_zero() -> None:
    zeros = torch.zeros(3, 32)
    learned = learn_clipping(
        {"w": clippable(zeros, "channel")},
        mean_square(zeros, torch.ones(32)),
        1,
        steps=2,
        rate=RATE,
        scale_dtype=torch.float16,
    )
    assert torch.equal(learned.scales["w"], torch.ones(3, 1, dtype=torch.float16))
