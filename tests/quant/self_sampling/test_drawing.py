import pytest
import torch
from scipy import stats

from spearhead.quant.self_sampling.drawing import draw_tokens, invert


def test_ids_follow_the_softmax_over_temperature() -> None:
    # False alarm: once in 10⁶ seeds; the seed is fixed.
    generator = torch.Generator().manual_seed(5)
    head = torch.randn(700, 16, generator=generator)
    hidden = torch.randn(1, 16, generator=generator) * 0.5
    draws, temperature = 50_000, 1.7
    uniform = torch.rand(draws, dtype=torch.float64, generator=generator)
    drawn = torch.cat(
        [
            draw_tokens(hidden.expand(len(u), -1), head, torch.full((len(u),), temperature), u)
            for u in uniform.split(10_000)
        ]
    )
    expected = (hidden.double() @ head.double().T / temperature).softmax(-1)[0] * draws
    rare = expected < 20
    seen = torch.bincount(drawn, minlength=700).double()
    pooled = [torch.cat([x[~rare], x[rare].sum()[None]]).numpy() for x in (seen, expected)]
    assert stats.chisquare(*pooled).pvalue > 1e-6


@pytest.mark.parametrize("size", [1, 3, 255, 256, 257, 1000])
def test_inversion_is_that_of_the_cumulative_sum(size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    logits = torch.randn(50, size, generator=generator) * 3
    uniform = torch.rand(50, dtype=torch.float64, generator=generator)
    distribution = logits.double().softmax(-1).cumsum(-1)
    expected = (distribution <= uniform[:, None]).sum(-1)
    assert torch.equal(invert(logits, uniform), expected)


@pytest.mark.parametrize("uniform", [0.0, 0.5, 1.0 - 2.0**-53])
def test_an_id_of_no_probability_is_never_drawn(uniform: float) -> None:
    logits = torch.full((1, 600), float("-inf"))
    logits[0, [300, 301, 400]] = torch.tensor([1.0, 1.0, -20.0])
    assert int(invert(logits, torch.tensor([uniform], dtype=torch.float64))) in (300, 301, 400)


def test_an_improbable_id_keeps_its_chance() -> None:
    logits = torch.tensor([[0.0, -25.0]])  # e⁻²⁵ = 1.4e-11
    just_below_one = torch.tensor([1.0 - 1e-12], dtype=torch.float64)
    assert int(invert(logits, just_below_one)) == 1
