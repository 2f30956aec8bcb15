"""The files of a quantised artefact beside its weights: configuration and tokenizer."""

import json
import os
import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spearhead.model.checkpoint import Checkpoint
from spearhead.quant.recipe import Choices, ModuleChoice
from spearhead.tokenizer import Tokenizer

REPORT_FILE = "spear/quantization.json"
FOLDS_FILE = "spear/folds.safetensors"
_COMPANIONS = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
)


def artefact_config(checkpoint: Checkpoint, choices: Choices, source: str, output: Path) -> dict[str, Any]:
    """The source's ``config.json`` plus how the weights are quantised and what they were made from."""
    config = dict(checkpoint.hugging_face_config)
    # Scales and kept tensors are of this type; a reader must not take another.
    named = [key for key in ("dtype", "torch_dtype") if key in config]
    config |= dict.fromkeys(named or ["torch_dtype"], checkpoint.weight_dtype)
    config["quantization_config"] = quantization_config(choices)
    is_path = Path(source).exists()
    config["spear"] = {
        "version": 1,
        "quantization": describe(choices),
        "full_precision": os.path.relpath(Path(source).resolve(), output.resolve()) if is_path else source,
        "full_precision_revision": checkpoint.revision,
    }
    return config


def describe(choices: Choices) -> str:
    """For people, such as ``w4 symmetric, group 32, absmax/7.5`` or several of them with their counts."""
    counts = Counter("16 bits" if choice is None else choice.description for choice in choices.values())
    if len(counts) == 1:
        return next(iter(counts))
    return "; ".join(f"{count} modules {name}" for name, count in counts.most_common())


def quantization_config(choices: Choices) -> dict[str, Any]:
    """The ``quantization_config`` that transformers and vLLM read.

    One kind of grid targets every linear module. Several name their modules one by one: readers that fuse
    projections look a class up before a name, and would give all of them the first grid.
    """
    grids: dict[str, list[str]] = {}
    weights: dict[str, dict[str, Any]] = {}
    for module, choice in choices.items():
        if choice is not None:
            arguments = _weights(choice)
            key = json.dumps(arguments)
            grids.setdefault(key, []).append(module)
            weights[key] = arguments
    dense = [module for module, choice in choices.items() if choice is None]
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "ignore": ["lm_head", *dense],
        "config_groups": {
            f"group_{index}": {
                "targets": ["Linear"] if len(grids) == 1 else modules,
                "weights": weights[key],
                "input_activations": None,
                "output_activations": None,
            }
            for index, (key, modules) in enumerate(grids.items())
        },
    }


def _weights(choice: ModuleChoice) -> dict[str, Any]:
    arguments: dict[str, Any] = {"num_bits": choice.bits, "type": "int", "symmetric": True, "dynamic": False}
    if choice.scheme.group_size:
        return arguments | {"strategy": "group", "group_size": choice.scheme.group_size}
    return arguments | {"strategy": "channel"}  # readers know no single scale for a whole tensor


def check_companions(checkpoint: Checkpoint) -> None:
    """Makes sure that :func:`write_companions` will work: a GGUF file's tokenizer must be convertible.

    Raises:
        CheckpointError: There is no usable tokenizer.
    """
    if checkpoint.path.is_file():
        Tokenizer.load(checkpoint.path)


def write_companions(checkpoint: Checkpoint, folder: Path) -> None:
    """Tokenizer and generation settings: copied from a folder, converted from a GGUF file."""
    if checkpoint.path.is_file():
        Tokenizer.load(checkpoint.path).save(folder)
        return
    for name in _COMPANIONS:
        if (checkpoint.path / name).exists():
            shutil.copyfile(checkpoint.path / name, folder / name)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Writes JSON for people to read."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
