import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from spearhead.errors import CalibrationError, ConfigError
from spearhead.model.checkpoint import open_checkpoint
from spearhead.quant.calibration import (
    CalibrationOutcome,
    CalibrationRequest,
    OutcomeOptions,
    calibrate,
)
from spearhead.quant.calibration.encoding import encode
from spearhead.quant.calibration.lora import export_lora
from spearhead.quant.calibration.progress import silent
from spearhead.quant.calibration.report import Surroundings
from spearhead.quant.evaluation import opened_models

Artefact = Callable[..., Path]
Request = Callable[..., CalibrationRequest]
TOKENS = torch.randint(3, 300, (1, 20), generator=torch.Generator().manual_seed(1))


def _exported(request: CalibrationRequest, adapter: Path) -> CalibrationOutcome:
    nowhere = Surroundings(versions={}, commands=(), device="here")
    outcome = CalibrationOutcome(OutcomeOptions(adapter=adapter), nowhere, silent)
    calibrate(request, begin=outcome.read, finish=outcome.score, after=outcome.publish)
    return outcome


def _with_adapter(artefact: Path, adapter: Path) -> Any:
    """transformers' model of the 4-bit weights with y += alpha / r B A x, as the LoRA paper has it."""
    from transformers import AutoConfig, AutoModelForCausalLM

    checkpoint = open_checkpoint(str(artefact))
    source = checkpoint.full_precision_source
    assert source is not None
    config = json.loads((adapter / "adapter_config.json").read_text())
    factors = load_file(adapter / "adapter_model.safetensors")
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(source.location))
    model.load_state_dict({name: checkpoint.tensor(name) for name in checkpoint.shapes}, strict=False)
    model.tie_weights()
    modules = dict(model.named_modules())
    assert all(target in modules for target in config["target_modules"])
    for target in config["target_modules"]:
        rank, alpha = config["rank_pattern"][target], config["alpha_pattern"][target]
        a = factors[f"base_model.model.{target}.lora_A.weight"].float()
        b = factors[f"base_model.model.{target}.lora_B.weight"].float()
        assert a.shape[0] == b.shape[1] == rank

        def corrected(
            module: Any, inputs: Any, output: Any, a: Any = a, b: Any = b, s: float = alpha / rank
        ) -> Any:
            return output + s * (inputs[0] @ a.T) @ b.T

        modules[target].register_forward_hook(corrected)
    return model.eval()


@pytest.mark.parametrize("bits", [16, 8])
def test_an_adapter_computes_what_the_compensators_compute(
    artefact: Artefact, request_for: Request, tmp_path: Path, bits: int
) -> None:
    path = artefact("qwen2")
    outcome = _exported(request_for(path, factor_bits=bits), tmp_path / "adapter")
    assert outcome.adapter_rung == "trained"
    with opened_models([str(path)], dtype=torch.float32, device=torch.device("cpu")) as models:
        ours = models.variants[1].final_hidden(TOKENS)[0] @ models.variants[1].head.T
    with torch.no_grad():
        theirs = _with_adapter(path, tmp_path / "adapter")(TOKENS).logits[0]
    assert float((ours - theirs).norm() / theirs.norm()) < 1e-5


def test_the_twin_without_gates_is_exported_and_named(
    artefact: Artefact, request_for: Request, tmp_path: Path
) -> None:
    outcome = _exported(request_for(artefact(), gate="force", gate_min_rank=2), tmp_path / "adapter")
    assert outcome.adapter_rung == "trained"
    said = json.loads((tmp_path / "adapter/adapter_config.json").read_text())
    assert said["r"] == max(said["rank_pattern"].values())


def test_gates_cannot_be_exported(artefact: Artefact, request_for: Request, tmp_path: Path) -> None:
    found = calibrate(request_for(artefact(), gate="force", gate_min_rank=2))
    gated = {module: one.decode() for module, one in encode(found.chosen.factors, 16).items()}
    with pytest.raises(CalibrationError, match="have gates, which no adapter can express"):
        export_lora(gated, tmp_path / "adapter", base_model="w4", exact=False)
    assert not (tmp_path / "adapter").exists()
    with pytest.raises(CalibrationError, match="no compensators"):
        export_lora({}, tmp_path / "adapter", base_model="w4", exact=False)
    plain = {module: replace(one, gate=None) for module, one in gated.items()}
    (tmp_path / "adapter").mkdir()
    with pytest.raises(ConfigError, match="exists"):
        export_lora(plain, tmp_path / "adapter", base_model="w4", exact=False)
