"""The files of a 4-bit artefact: weight shards, configuration, tokenizer."""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from spearhead.model.checkpoint import Checkpoint
from spearhead.model.quantization import QuantizationScheme
from spearhead.tokenizer import Tokenizer

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


class ShardWriter:
    """Collects tensors into safetensors files of bounded size.

    Args:
        folder: Where the files go.
        shard_bytes: A file is closed once it holds this much.
    """

    def __init__(self, folder: Path, shard_bytes: int) -> None:
        self.total_bytes = 0
        self._folder = folder
        self._shard_bytes = shard_bytes
        self._pending: dict[str, Tensor] = {}
        self._pending_bytes = 0
        self._shards: list[list[str]] = []

    def add(self, name: str, tensor: Tensor) -> None:
        """Takes one tensor; may write a file."""
        self._pending[name] = tensor.contiguous()
        self._pending_bytes += tensor.nbytes
        self.total_bytes += tensor.nbytes
        if self._pending_bytes >= self._shard_bytes:
            self._flush()

    def finish(self) -> None:
        """Writes what is left, gives the files their final names, and writes the index of several."""
        if self._pending:
            self._flush()
        count = len(self._shards)
        if count == 1:
            self._part(0).rename(self._folder / "model.safetensors")
            return
        weight_map: dict[str, str] = {}
        for index, names in enumerate(self._shards):
            final = f"model-{index + 1:05}-of-{count:05}.safetensors"
            self._part(index).rename(self._folder / final)
            weight_map |= dict.fromkeys(names, final)
        write_json(
            self._folder / "model.safetensors.index.json",
            {"metadata": {"total_size": self.total_bytes}, "weight_map": weight_map},
        )

    def _flush(self) -> None:
        # Readers choose the framework by this entry.
        path = self._part(len(self._shards))
        save_file(self._pending, path, metadata={"format": "pt"})
        path.chmod(0o644)  # the library keeps it private
        self._shards.append(list(self._pending))
        self._pending, self._pending_bytes = {}, 0

    def _part(self, index: int) -> Path:
        return self._folder / f"part-{index}"


def artefact_config(
    checkpoint: Checkpoint, scheme: QuantizationScheme, source: str, output: Path
) -> dict[str, Any]:
    """The source's ``config.json`` plus how the weights are quantised and what they were made from."""
    config = dict(checkpoint.hugging_face_config)
    # Scales and kept tensors are of this type; a reader must not take another.
    config["dtype" if "dtype" in config else "torch_dtype"] = checkpoint.weight_dtype
    config["quantization_config"] = _quantization_config(scheme)
    is_path = Path(source).exists()
    config["spear"] = {
        "version": 1,
        "quantization": scheme.description,
        "full_precision": os.path.relpath(Path(source).resolve(), output.resolve()) if is_path else source,
        "full_precision_revision": checkpoint.revision,
    }
    return config


def _quantization_config(scheme: QuantizationScheme) -> dict[str, Any]:
    weights: dict[str, Any] = {"num_bits": 4, "type": "int", "symmetric": True, "dynamic": False}
    if scheme.group_size:
        weights |= {"strategy": "group", "group_size": scheme.group_size}
    else:
        weights |= {"strategy": "channel"}  # readers know no single scale for a whole tensor
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": weights,
                "input_activations": None,
                "output_activations": None,
            }
        },
    }


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
