"""Compensators without gates as a LoRA adapter for other servers: y += (alpha / r) B A x with alpha = r."""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from spearhead.errors import CalibrationError, ConfigError
from spearhead.model.checkpoint.compensators import Compensator
from spearhead.model.checkpoint.durable import put_in_place

_PREFIX = "base_model.model."


def export_lora(
    compensators: Mapping[str, Compensator],
    folder: Path,
    *,
    base_model: str,
    exact: bool,
) -> None:
    """Writes ``adapter_config.json`` and ``adapter_model.safetensors`` as the ``peft`` package reads them.

    Args:
        compensators: By module, without gates.
        folder: Made here; must not exist.
        base_model: What the adapter belongs to: the 4-bit artefact, not the full-precision model.
        exact: Store float32, which 8-bit and 4-bit factors need; 16-bit ones are bfloat16 as it is.

    Raises:
        CalibrationError: A compensator has a gate, there are none, or the folder cannot be written.
        ConfigError: The folder exists.
    """
    if not compensators:
        raise CalibrationError("there are no compensators to export")
    gated = [module for module, one in compensators.items() if one.gate is not None]
    if gated:
        raise CalibrationError(
            f"{len(gated)} compensators, {gated[0]} among them, have gates, which no adapter can express; "
            "export a rung without"
        )
    if folder.exists():
        raise ConfigError(f"{folder} exists; remove it or choose another folder for the adapter")
    part = folder.with_name(f".{folder.name}.partial-{os.getpid()}")
    try:
        part.mkdir(parents=True)
        text = json.dumps(_config(compensators, base_model), indent=2) + "\n"
        (part / "adapter_config.json").write_text(text, encoding="utf-8")
        file = part / "adapter_model.safetensors"
        dtype = torch.float32 if exact else torch.bfloat16
        save_file(_tensors(compensators, dtype), file, metadata={"format": "pt"})
        file.chmod(0o644)  # the library keeps it private
        put_in_place(part, folder)
    except (OSError, SafetensorError) as error:
        raise CalibrationError(
            f"the adapter {folder} cannot be written: {error}; free space or choose another folder"
        ) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _config(compensators: Mapping[str, Compensator], base_model: str) -> dict[str, object]:
    ranks = {module: one.a.shape[0] for module, one in sorted(compensators.items())}
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_model,
        "inference_mode": True,
        "bias": "none",
        "fan_in_fan_out": False,
        "init_lora_weights": True,
        "use_rslora": False,
        "use_dora": False,
        "lora_dropout": 0.0,
        "modules_to_save": None,
        "r": max(ranks.values()),
        "lora_alpha": max(ranks.values()),
        "target_modules": list(ranks),
        "rank_pattern": ranks,
        "alpha_pattern": ranks,
    }


def _tensors(compensators: Mapping[str, Compensator], dtype: torch.dtype) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for module, one in compensators.items():
        tensors[f"{_PREFIX}{module}.lora_A.weight"] = one.a.to(dtype).contiguous()
        tensors[f"{_PREFIX}{module}.lora_B.weight"] = one.b.to(dtype).contiguous()
    return tensors
