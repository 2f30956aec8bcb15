"""Checkpoints that others quantised: from their files on the disk to compensators that are served."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from spearhead.model.checkpoint import load_variants, open_checkpoint
from spearhead.quant.calibration import CalibrationRequest, CalibrationSettings, calibrate
from spearhead.quant.evaluation import opened_models
from spearhead.quant.evaluation.model_variant import EvaluatedModel
from spearhead.quant.layers import final_hidden
from tests.model.checkpoint.published import awq_tensors, edit_tensors, gptq_tensors, nearest_grid, publish

CPU = torch.device("cpu")
GROUP_SIZE = 32


def gptq(source: Path, *, version: int, act_order: bool) -> Path:
    def encode(_module: str, weight: Tensor) -> dict[str, Tensor]:
        grid = nearest_grid(weight, group_size=GROUP_SIZE, act_order=act_order)
        return gptq_tensors(grid, bits=4, version=version)

    settings: dict[str, object] = {"quant_method": "gptq", "bits": 4, "group_size": GROUP_SIZE}
    settings |= {"desc_act": act_order, "sym": False}
    if version == 2:
        settings["checkpoint_format"] = "gptq_v2"
    return publish(source, source.parent / "gptq", settings, encode)


def awq(source: Path) -> Path:
    """With scales of the MLP's inputs folded into the norm before it, as that tool does."""
    scales = torch.linspace(0.5, 2.0, 64)

    def encode(module: str, weight: Tensor) -> dict[str, Tensor]:
        scaled = weight.float() * scales if module.endswith(("gate_proj", "up_proj")) else weight
        return awq_tensors(nearest_grid(scaled, group_size=GROUP_SIZE))

    settings = {"quant_method": "awq", "bits": 4, "group_size": GROUP_SIZE, "zero_point": True}
    folder = publish(source, source.parent / "awq", {**settings, "version": "gemm"}, encode)

    def fold(tensors: dict[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            if name.endswith("post_attention_layernorm.weight"):
                tensors[name] = tensor / scales.to(tensor.dtype)

    edit_tensors(folder / "model.safetensors", fold)
    return folder


@pytest.mark.parametrize(
    "write",
    [
        pytest.param(lambda source: gptq(source, version=1, act_order=False), id="gptq v1"),
        pytest.param(lambda source: gptq(source, version=1, act_order=True), id="gptq v1, act-order"),
        pytest.param(lambda source: gptq(source, version=2, act_order=True), id="gptq v2, act-order"),
        pytest.param(awq, id="awq gemm"),
    ],
)
def test_a_published_checkpoint_comes_closer_to_its_parent(
    tiny_checkpoint: Callable[..., Path],
    request_for: Callable[..., CalibrationRequest],
    write: Callable[[Path], Path],
) -> None:
    parent = tiny_checkpoint("llama", hidden_size=64, intermediate_size=96)
    path = write(parent)
    request = replace(request_for(path), full_precision=str(parent))
    found = calibrate(replace(request, settings=CalibrationSettings(dtype="float32")))
    assert found.chosen.factors
    assert open_checkpoint(str(path)).variants == ("w4", "w4+ec")
    assert load_variants(open_checkpoint(str(path)), variants=["w4+ec"], dtype=torch.float32, device=CPU)
    tokens = found.texts.held_out.token_ids.long()
    with opened_models([str(parent), str(path)], dtype=torch.float32, device=CPU) as models:
        w4, compensated = (divergence(models.reference, variant, tokens) for variant in models.variants)
    assert 0 < compensated < 0.9 * w4


def divergence(reference: EvaluatedModel, variant: EvaluatedModel, tokens: Tensor) -> float:
    """Mean KL(full precision ‖ variant) a token, nats."""
    with torch.no_grad():
        true, other = (
            torch.log_softmax(final_hidden(model.source, tokens, model.linear) @ model.source.head.T, -1)
            for model in (reference, variant)
        )
    return float((true.exp() * (true - other)).sum(-1).mean())
