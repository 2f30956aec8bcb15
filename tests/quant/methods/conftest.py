"""Weights and inputs for the methods."""

from collections.abc import Callable, Iterator

import pytest
import torch

from spearhead.quant.moments import Moments, MomentsAccumulator


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Matrices this small take longer to hand out than to multiply."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def weight() -> Callable[..., torch.Tensor]:
    """``weight(rows=12, columns=64, seed=0)``: float32."""

    def make(rows: int = 12, columns: int = 64, seed: int = 0) -> torch.Tensor:
        return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))

    return make


@pytest.fixture
def moments() -> Callable[..., Moments]:
    """``moments(columns=64, tokens=200, seed=1)``: of correlated inputs of very different sizes."""

    def make(columns: int = 64, tokens: int = 200, seed: int = 1) -> Moments:
        generator = torch.Generator().manual_seed(seed)
        mix = torch.randn(columns, columns, generator=generator) / columns**0.5
        sizes = torch.exp(1.5 * torch.randn(columns, generator=generator))
        x = torch.randn(1, tokens, columns, generator=generator) @ mix * sizes
        return moments_of(x)

    return make


def moments_of(x: torch.Tensor) -> Moments:
    accumulator = MomentsAccumulator("module", x.shape[2], torch.device("cpu"))
    accumulator.add(x, torch.ones(x.shape[:2], dtype=torch.bool))
    return accumulator.finish()
