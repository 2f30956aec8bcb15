"""Corrections of modules that need none, and corrections that correct nothing."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from spearhead.errors import CalibrationError
from spearhead.model.checkpoint import open_checkpoint
from spearhead.quant import QuantizationRecipe, quantize_checkpoint
from spearhead.quant.calibration import CalibrationRequest, calibrate
from spearhead.quant.calibration.fitting import _check_improves
from spearhead.quant.low_rank import qera_exact
from spearhead.quant.moments import Moments

SILENT, DEAD = "model.layers.0.self_attn.v_proj", "model.layers.0.mlp.gate_proj"


def test_zero_rows_and_modules_get_corrections_of_zero_or_none(
    tiny_checkpoint: Callable[..., Path],
    request_for: Callable[..., CalibrationRequest],
    tmp_path: Path,
) -> None:
    source = tiny_checkpoint("llama")
    tensors = load_file(source / "model.safetensors")
    tensors[f"{SILENT}.weight"].zero_()
    tensors[f"{DEAD}.weight"][5] = 0  # and with it an input of down_proj
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    quantize_checkpoint(str(source), tmp_path / "w4", QuantizationRecipe.parse("channel", "rtn", []), None)
    request = request_for(tmp_path / "w4", budget_share=0.5)
    found = calibrate(request)
    assert SILENT not in found.allocation.ranks
    assert not found.forms.by_module[SILENT].b.any()
    assert not found.forms.by_module[DEAD].b[5].any()
    compensators = open_checkpoint(str(tmp_path / "w4")).compensators
    assert compensators is not None and SILENT not in compensators.by_module
    for compensator in compensators.by_module.values():
        assert torch.isfinite(compensator.a).all() and torch.isfinite(compensator.b).all()


def test_a_correction_that_makes_outputs_worse_is_refused() -> None:
    generator = torch.Generator().manual_seed(0)
    x, error = torch.randn(50, 12, generator=generator), torch.randn(8, 12, generator=generator)
    second = (x.T @ x / len(x)).double()
    sizes = x.abs().double()
    moments = Moments(
        count=len(x),
        second=second,
        mean_abs=sizes.mean(0),
        peak_mean_abs=sizes.mean(0),
        peak_abs=sizes.amax(0),
    )
    best = qera_exact(error, moments, 3)
    _check_improves("up_proj", error, moments, best)
    with pytest.raises(CalibrationError, match=r"the correction of up_proj leaves more error \("):
        _check_improves("up_proj", error, moments, replace(best, b=-best.b))
