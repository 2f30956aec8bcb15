from collections.abc import Callable
from dataclasses import replace
from typing import get_args

import pytest
import torch

from spearhead.errors import CalibrationError
from spearhead.quant.methods.options import MethodOptions
from spearhead.quant.methods.weight import quantize_weight
from spearhead.quant.methods.weight_error import relative_error
from spearhead.quant.moments import Moments
from spearhead.quant.recipe import Method, ModuleChoice

Weights = Callable[..., torch.Tensor]
Inputs = Callable[..., Moments]
SCHEMES = ["tensor", "channel/7", "group32", "w8"]
METHODS = [name for name in get_args(Method) if not name.startswith("awq")]
OPTIONS = MethodOptions(clipping_steps=15, clipping_rate=0.1)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_no_method_is_worse_than_rounding_to_nearest_by_its_own_measure(
    weight: Weights, moments: Inputs, scheme: str, method: str
) -> None:
    w, seen = weight(), moments()
    measure = {
        "rtn-clip": torch.diag(seen.mean_square),
        "rtn-clip-unweighted": torch.eye(64, dtype=torch.float64),
    }.get(method, seen.second)
    plain = quantize_weight(w, ModuleChoice.parse(f"{scheme}:rtn"), seen)
    found = quantize_weight(w, ModuleChoice.parse(f"{scheme}:{method}"), seen, options=OPTIONS)
    assert found.method_used == method or "fell back" in found.note
    assert found.codes.dtype == torch.int8 and found.scales.shape == plain.scales.shape
    error = relative_error(w, found.dequantize(), measure)
    assert error <= relative_error(w, plain.dequantize(), measure)


@pytest.mark.parametrize("method", METHODS)
def test_zero_rows_groups_and_matrices_stay_zero_and_are_told(
    weight: Weights, moments: Inputs, method: str
) -> None:
    w = weight()
    w[3] = 0
    w[5, :32] = 0
    for given, count in ((w, 3), (torch.zeros(12, 64), 24)):
        result = quantize_weight(given, ModuleChoice.parse(f"group32:{method}"), moments(), options=OPTIONS)
        quantized = result.dequantize()
        assert torch.isfinite(quantized).all()
        assert not quantized[3].any() and not quantized[5, :32].any()
        assert f"{count} rows or groups are all zero" in result.note


@pytest.mark.parametrize("method", METHODS)
def test_scales_that_underflow_are_raised_and_told(moments: Inputs, method: str) -> None:
    tiny = torch.full((2, 64), 1e-6)
    result = quantize_weight(tiny, ModuleChoice.parse(f"channel:{method}"), moments(), options=OPTIONS)
    assert (result.scales == torch.finfo(torch.float16).tiny).all()
    assert "2 scales were raised to the smallest that float16 holds" in result.note


def test_gptq_falls_back_and_says_so(weight: Weights, moments: Inputs) -> None:
    broken = moments().second.clone()
    broken[0, 1] = broken[1, 0] = 100 * broken.diagonal().max()
    seen = replace(moments(), second=broken)
    result = quantize_weight(weight(), ModuleChoice.parse("channel:gptq"), seen)
    assert result.method_used == "rtn"
    assert result.note.startswith("gptq fell back to rounding: the second moments cannot be factorised")
    plain = quantize_weight(weight(), ModuleChoice.parse("channel"))
    assert torch.equal(result.codes, plain.codes) and torch.equal(result.scales, plain.scales)
    clipped = quantize_weight(weight(), ModuleChoice.parse("channel:gptq-clip"), seen)
    assert clipped.method_used == "rtn-clip"


def test_dead_inputs_do_no_harm(weight: Weights, moments: Inputs) -> None:
    second = moments().second.clone()
    second[4], second[:, 4] = 0, 0
    seen = replace(moments(), second=second)
    for method in METHODS:
        result = quantize_weight(weight(), ModuleChoice.parse(f"channel:{method}"), seen, options=OPTIONS)
        assert result.method_used == method or "omniquant fell back to rtn-clip" in result.note
        assert torch.isfinite(result.dequantize()).all()


@pytest.mark.parametrize(
    ("method", "changed"),
    [
        ("gptq", MethodOptions(act_order=True)),
        ("gptq", MethodOptions(damping=1.0)),
    ],
)
def test_every_option_of_gptq_has_an_effect(
    weight: Weights, moments: Inputs, method: str, changed: MethodOptions
) -> None:
    choice = ModuleChoice.parse(f"channel:{method}")
    before, after = (
        quantize_weight(weight(), choice, moments(), options=options)
        for options in (MethodOptions(), changed)
    )
    assert not torch.equal(before.dequantize(), after.dequantize())


@pytest.mark.parametrize("method", ["rtn-clip", "gptq", "gptq-clip", "omniquant"])
def test_missing_statistics_are_an_error(weight: Weights, method: str) -> None:
    with pytest.raises(CalibrationError, match=f"{method} needs statistics of the inputs"):
        quantize_weight(weight(), ModuleChoice.parse(f"channel:{method}"))


def test_moments_that_are_not_finite_are_an_error(weight: Weights, moments: Inputs) -> None:
    second = moments().second.clone()
    second[0, 0] = float("inf")
    with pytest.raises(CalibrationError, match="second moments of the inputs hold NaN or infinity"):
        quantize_weight(weight(), ModuleChoice.parse("channel:gptq"), replace(moments(), second=second))


def test_an_outlier_column_costs_rows_what_groups_keep(weight: Weights, moments: Inputs) -> None:
    w = weight()
    w[:, 10] = 40.0
    by_row = quantize_weight(w, ModuleChoice.parse("channel"))
    by_group = quantize_weight(w, ModuleChoice.parse("group32"))
    rest = slice(32, 64)
    assert relative_error(w[:, rest], by_group.dequantize()[:, rest], None) < 0.15
    assert relative_error(w[:, rest], by_row.dequantize()[:, rest], None) > 0.9
