import json
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
from spearhead.quant.calibration.folds import Folds

TOKENS = [torch.randint(3, 300, (40,), generator=torch.Generator().manual_seed(i)).tolist() for i in range(8)]


@pytest.fixture
def folded(tiny_checkpoint: Callable[..., Path], tmp_path: Path) -> tuple[Path, Path]:
    """A full-precision model with outlier channels, and its AWQ artefact."""
    source = tiny_checkpoint("llama", num_key_value_heads=4)
    tensors = load_file(source / "model.safetensors")
    for name in ("model.layers.0.input_layernorm.weight", "model.layers.1.post_attention_layernorm.weight"):
        tensors[name][5] *= 8
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    recipe = QuantizationRecipe.parse("group32", "awq", [])
    quantize_checkpoint(str(source), tmp_path / "awq", recipe, TOKENS)
    return source, tmp_path / "awq"


def test_recorded_folds_make_the_error_small(folded: tuple[Path, Path]) -> None:
    full, artefact = (open_checkpoint(str(path)) for path in folded)
    folds = Folds.of(artefact, full)
    assert folds.columns
    for module in folds.columns:
        weight, stored = full.tensor(f"{module}.weight").float(), artefact.tensor(f"{module}.weight")
        scaled = folds.folded(module, weight)
        assert float((scaled - stored).norm() / scaled.norm()) < 0.15
        torch.testing.assert_close(folds.unfolded(module, scaled), weight)


def test_folds_of_a_published_checkpoint_show_in_its_norms_and_rows(folded: tuple[Path, Path]) -> None:
    full, artefact = (open_checkpoint(str(path)) for path in folded)
    recorded = Folds.of(artefact, full)
    (folded[1] / "spear/folds.safetensors").unlink()
    config = json.loads((folded[1] / "config.json").read_text())
    artefact.hugging_face_config["quantization_config"]["quant_method"] = "awq"
    shown = Folds.of(artefact, full)
    assert config["quantization_config"]["quant_method"] == "compressed-tensors"
    for module, scales in recorded.columns.items():
        exact = module.endswith(("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"))
        torch.testing.assert_close(shown.columns[module], scales, rtol=1e-3 if exact else 0.2, atol=0.0)


def _as_published(artefact: Path) -> None:
    """Compressed-tensors of somebody else: no record of what it was made from, nor of what was folded."""
    config = json.loads((artefact / "config.json").read_text())
    assert config["quantization_config"]["quant_method"] == "compressed-tensors"
    del config["spear"]
    (artefact / "config.json").write_text(json.dumps(config))
    (artefact / "spear/folds.safetensors").unlink()


def test_a_published_artefact_whose_method_is_not_told_is_mended_all_the_same(
    folded: tuple[Path, Path], request_for: Callable[..., CalibrationRequest]
) -> None:
    recorded = Folds.of(*(open_checkpoint(str(path)) for path in folded[::-1]))
    _as_published(folded[1])
    full, artefact = (open_checkpoint(str(path)) for path in folded)
    shown = Folds.of(artefact, full)
    assert set(recorded.rows) <= set(shown.rows)
    for module in shown.columns:
        weight, stored = full.tensor(f"{module}.weight").float(), artefact.tensor(f"{module}.weight")
        scaled = shown.folded(module, weight)
        assert float((scaled - stored).norm() / scaled.norm()) < 0.15
    found = calibrate(replace(request_for(folded[1]), full_precision=str(folded[0])))
    assert found.rungs[1].mean_kl < found.rungs[0].mean_kl
    assert found.chosen.factors


@pytest.mark.parametrize("method", ["rtn", "awq"])
def test_another_model_of_the_same_shape_is_refused_though_nothing_is_recorded(
    folded: tuple[Path, Path],
    artefact: Callable[..., Path],
    tiny_checkpoint: Callable[..., Path],
    request_for: Callable[..., CalibrationRequest],
    method: str,
) -> None:
    other = tiny_checkpoint("llama", seed=9, num_key_value_heads=4)
    quantized = folded[1] if method == "awq" else artefact("llama", num_key_value_heads=4)
    (quantized / "spear/folds.safetensors").touch()
    _as_published(quantized)
    with pytest.raises(
        CalibrationError, match=r"weights of model\.layers\.0\.\S+ differ from .* by 1\.\d\d of .*--full-prec"
    ):
        calibrate(replace(request_for(quantized), full_precision=str(other)))
    assert not (quantized / "spear/ec.safetensors").exists()


def test_an_awq_artefact_is_mended_in_its_own_scaling(
    folded: tuple[Path, Path], request_for: Callable[..., CalibrationRequest]
) -> None:
    found = calibrate(request_for(folded[1]))
    assert found.rungs[1].mean_kl < found.rungs[0].mean_kl
    assert found.chosen.factors


def test_an_artefact_without_folds_has_none(
    artefact: Callable[..., Path],
) -> None:
    path = artefact()
    quantized = open_checkpoint(str(path))
    source = quantized.full_precision_source
    assert source is not None
    folds = Folds.of(quantized, open_checkpoint(source.location))
    assert not folds.columns and not folds.rows
