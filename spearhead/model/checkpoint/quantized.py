"""A folder with 4-bit weights: compressed-tensors' ``pack-quantized``, perhaps with compensators."""

import logging
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import try_to_load_from_cache
from torch import Tensor

from kernels.w4a16 import dequantize, unpack
from spearhead.errors import CheckpointError
from spearhead.model.architecture import ModelConfig
from spearhead.model.checkpoint.compensators import CompensatorSet, load_compensators
from spearhead.model.checkpoint.folder import read_generation_config
from spearhead.model.checkpoint.hub import is_hub_id
from spearhead.model.checkpoint.layout import check_shapes, linear_modules
from spearhead.model.checkpoint.source import FullPrecisionSource
from spearhead.model.checkpoint.tensor_files import (
    TensorFiles,
    combined_digest,
    file_digest,
    find_tensor_files,
)

_log = logging.getLogger(__name__)
_PACKED, _SCALE, _SHAPE = ".weight_packed", ".weight_scale", ".weight_shape"


class QuantizedCheckpoint:
    """Weights in 4 bits beside 16-bit embeddings, norms, biases and head.

    Args:
        path: The folder.
        config: Its parsed ``config.json``.

    Raises:
        CheckpointError: Files, tensors, shapes or the kind of quantisation cannot be used.
    """

    def __init__(self, path: Path, config: Mapping[str, Any]) -> None:
        self.path = path
        self.hugging_face_config = config
        self.generation_config = read_generation_config(path)
        self.config = ModelConfig.from_hugging_face(config, self.generation_config)
        sharing = _check_quantization(config["quantization_config"], path)
        self._spear: Mapping[str, Any] = config.get("spear", {})
        self.quantization = str(self._spear.get("quantization", f"w4 symmetric, {sharing}"))
        self._files = TensorFiles(find_tensor_files(path))
        try:
            self.shapes = self._logical_shapes()
            check_shapes(self.config, self.shapes, str(path))
            self.weight_dtype = self._files.float_dtype(self._first_scale())
            self.compensators = self._load_compensators()
        except BaseException:
            self._files.close()
            raise

    def _logical_shapes(self) -> Mapping[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {}
        for name, shape in self._files.shapes.items():
            if name.endswith(_PACKED):
                module = name.removesuffix(_PACKED)
                rows, columns = (int(size) for size in self._files.tensor(module + _SHAPE))
                if shape != (rows, -(-columns // 8)):
                    raise CheckpointError(f"{name} has shape {shape}, expected {(rows, -(-columns // 8))}")
                shapes[f"{module}.weight"] = (rows, columns)
            elif not name.endswith((_SCALE, _SHAPE)):
                shapes[name] = shape
        return shapes

    def _first_scale(self) -> str:
        for name in self._files.shapes:
            if name.endswith(_SCALE):
                return name
        raise CheckpointError(f"{self.path} says that it is quantised, but has no {_PACKED} tensor")

    def _load_compensators(self) -> CompensatorSet | None:
        name = self._spear.get("ec_file")
        if name is None:
            return None
        return load_compensators(
            self.path / str(name),
            modules=linear_modules(self.config),
            w4_digests=self._w4_digests,
            quantization=self.quantization,
        )

    @property
    def variants(self) -> tuple[str, ...]:
        """``w4``, ``w4+ec`` with compensators, ``fp16`` when the source can be opened here."""
        compensated = ("w4+ec",) if self.compensators is not None else ()
        full = ("fp16",) if self.full_precision_source is not None else ()
        return ("w4", *compensated, *full)

    @cached_property
    def full_precision_source(self) -> FullPrecisionSource | None:
        """What these weights were made from, when it is on this machine."""
        named = self._spear.get("full_precision")
        if named is None:
            return None
        revision = str(self._spear.get("full_precision_revision", ""))
        path = self.path / str(named)
        if path.exists():
            return FullPrecisionSource(location=str(path), revision=revision)
        if is_hub_id(named) and isinstance(try_to_load_from_cache(named, "config.json"), str):
            return FullPrecisionSource(location=named, revision=revision)
        _log.warning("%s was made from %s, which is not here: variant fp16 is not offered", self.path, named)
        return None

    @cached_property
    def _w4_digests(self) -> dict[str, str]:
        return {path.name: file_digest(path) for path in self._files.paths}

    @cached_property
    def revision(self) -> str:
        """Digest of ``config.json``, the weights and the compensators."""
        digests = self._w4_digests | {"config.json": file_digest(self.path / "config.json")}
        if self.compensators is not None:
            digests["compensators"] = self.compensators.digest
        return combined_digest(digests)

    @property
    def stored_bytes(self) -> int:
        """Bytes of all tensors, compensators apart."""
        return self._files.stored_bytes(self._files.shapes)

    def tensor(self, name: str) -> Tensor:
        """One tensor; a 4-bit weight comes dequantised, in float32."""
        module = name.removesuffix(".weight")
        if module + _PACKED not in self._files.shapes:
            self._files.float_dtype(name)
            return self._files.tensor(name)
        scales = self._files.tensor(module + _SCALE)
        if not bool(torch.isfinite(scales).all()):
            raise CheckpointError(f"tensor {module}{_SCALE} holds NaN or infinity; make the artefact again")
        rows, columns = self.shapes[name]
        if scales.ndim != 2 or scales.shape[0] != rows or columns % scales.shape[1]:
            raise CheckpointError(
                f"{module}{_SCALE} has shape {tuple(scales.shape)}, which does not fit weights "
                f"{(rows, columns)}"
            )
        return dequantize(unpack(self._files.tensor(module + _PACKED), columns), scales)

    def close(self) -> None:
        """Closes the files."""
        self._files.close()


def _check_quantization(config: Mapping[str, Any], path: Path) -> str:
    """Refuses what is not symmetric W4 weight-only; returns how weights share scales."""
    method, form = config.get("quant_method"), config.get("format")
    if (method, form) != ("compressed-tensors", "pack-quantized"):
        raise CheckpointError(
            f"{path} is quantised with {method!r}, format {form!r}; supported is compressed-tensors' "
            "pack-quantized. Quantise the full-precision checkpoint with `spearhead quantize`"
        )
    groups = list(config.get("config_groups", {}).values())
    weights: Mapping[str, Any] = groups[0].get("weights") or {} if len(groups) == 1 else {}
    supported = {"num_bits": 4, "type": "int", "symmetric": True, "dynamic": False, "actorder": None}
    wrong = [f"{key} {weights.get(key)!r}" for key, value in supported.items() if weights.get(key) != value]
    if weights.get("strategy") not in ("channel", "group"):
        wrong.append(f"strategy {weights.get('strategy')!r}")
    if len(groups) != 1:
        wrong = [f"{len(groups)} config_groups"]
    elif groups[0].get("input_activations") is not None:
        wrong.append("quantised activations")
    if config.get("kv_cache_scheme") is not None:
        wrong.append("a quantised KV cache")
    if wrong:
        raise CheckpointError(
            f"{path} has {', '.join(wrong)}; supported is one group of symmetric 4-bit integer weights, per "
            "channel or per group, without activation order"
        )
    return "per channel" if weights["strategy"] == "channel" else f"group {weights.get('group_size')}"
