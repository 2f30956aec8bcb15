"""A folder with quantised weights, perhaps with compensators."""

import logging
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from huggingface_hub import try_to_load_from_cache
from torch import Tensor

from spearhead.errors import CheckpointError
from spearhead.model.architecture import ModelConfig
from spearhead.model.checkpoint.awq import AwqReader
from spearhead.model.checkpoint.compensators import CompensatorSet, find_compensators, load_compensators
from spearhead.model.checkpoint.folder import read_generation_config
from spearhead.model.checkpoint.gptq import GptqReader
from spearhead.model.checkpoint.hub import is_hub_id
from spearhead.model.checkpoint.layout import check_shapes, check_tied_head, expected_shapes, linear_modules
from spearhead.model.checkpoint.module_reader import ModuleReader
from spearhead.model.checkpoint.pack_quantized import PackQuantizedReader
from spearhead.model.checkpoint.source import FullPrecisionSource
from spearhead.model.checkpoint.tensor_files import (
    TensorFiles,
    combined_digest,
    file_digest,
    find_tensor_files,
)
from spearhead.model.quantization import InputGroups, QuantizedWeight

_log = logging.getLogger(__name__)
_Factory = Callable[[TensorFiles, Mapping[str, Any], ModelConfig, Path], ModuleReader]
_READERS: Mapping[str, _Factory] = {
    "compressed-tensors": PackQuantizedReader,
    "gptq": GptqReader,
    "awq": AwqReader,
}


class QuantizedCheckpoint:
    """Weights in 4 or 8 bits beside 16-bit embeddings, norms and biases.

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
        self._spear = _table(config, "spear", path)
        self._files = TensorFiles(find_tensor_files(path))
        try:
            self._reader = _reader(
                self._files, _table(config, "quantization_config", path), self.config, path
            )
            self.quantization = str(self._spear.get("quantization", self._reader.description))
            self.shapes = self._reader.shapes
            check_shapes(self.config, self.shapes, str(path))
            self._check_dense()
            check_tied_head(self.config, self.shapes, self.tensor, str(path))
            self.compensators = self._load_compensators()
        except BaseException:
            self._files.close()
            raise

    def _check_dense(self) -> None:
        for name in expected_shapes(self.config):
            if name.removesuffix(".weight") not in self._reader.input_groups:
                self._files.float_dtype(name)

    def _load_compensators(self) -> CompensatorSet | None:
        file = find_compensators(self.path, self._spear.get("ec_file"))
        if file is None:
            return None
        return load_compensators(
            file,
            modules=linear_modules(self.config),
            w4_digests=self.weight_digests,
            quantization=self.quantization,
        )

    @property
    def weight_dtype(self) -> str:
        """Type of the scales."""
        return self._reader.scale_dtype

    @property
    def input_groups(self) -> Mapping[str, InputGroups]:
        """How the inputs of each quantised module share scales."""
        return self._reader.input_groups

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
        if not isinstance(named, str):
            raise CheckpointError(
                f"{self.path}: spear.full_precision in config.json is {named!r}; a path or hub id is needed"
            )
        revision = str(self._spear.get("full_precision_revision", ""))
        path = self.path / named
        if path.exists():
            return FullPrecisionSource(location=str(path), revision=revision)
        if is_hub_id(named) and isinstance(try_to_load_from_cache(named, "config.json"), str):
            return FullPrecisionSource(location=named, revision=revision)
        _log.warning("%s was made from %s, which is not here: variant fp16 is not offered", self.path, named)
        return None

    @cached_property
    def weight_digests(self) -> Mapping[str, str]:
        """SHA-256 of the safetensors files; what compensators belong to."""
        return self._files.digests()

    @cached_property
    def revision(self) -> str:
        """Digest of ``config.json``, the weights and the compensators."""
        digests = {**self.weight_digests, "config.json": file_digest(self.path / "config.json")}
        if self.compensators is not None:
            digests["compensators"] = self.compensators.digest
        return combined_digest(digests)

    @property
    def stored_bytes(self) -> int:
        """Bytes of all tensors, compensators apart."""
        return self._files.stored_bytes(self._files.shapes)

    def tensor(self, name: str) -> Tensor:
        """One tensor; a quantised weight comes dequantised, in float32."""
        weight = self.quantized_weight(name.removesuffix(".weight")) if name.endswith(".weight") else None
        if weight is not None:
            return weight.dequantize()
        return self._files.tensor(name)

    def quantized_weight(self, module: str) -> QuantizedWeight | None:
        """Codes and scales; ``None`` for a module that was left dense."""
        return self._reader.weight(module) if module in self._reader.input_groups else None

    def close(self) -> None:
        """Closes the files."""
        self._files.close()


def _reader(
    files: TensorFiles, quantization: Mapping[str, Any], model: ModelConfig, path: Path
) -> ModuleReader:
    method = quantization.get("quant_method")
    reader = _READERS.get(str(method))
    if reader is None:
        raise CheckpointError(
            f"{path} is quantised with {method!r}; supported are {', '.join(_READERS)}. "
            "Quantise the full-precision checkpoint with `spearhead quantize`"
        )
    return reader(files, quantization, model, path)


def _table(config: Mapping[str, Any], key: str, path: Path) -> Mapping[str, Any]:
    value = config.get(key, {})
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: {key} in config.json is {value!r}; it must be a table")
    return value
