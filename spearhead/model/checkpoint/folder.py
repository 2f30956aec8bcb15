"""A folder in Hugging Face's layout, full precision."""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

from torch import Tensor

from spearhead.model.architecture import ModelConfig
from spearhead.model.checkpoint.compensators import CompensatorSet
from spearhead.model.checkpoint.layout import check_shapes, check_tied_head, expected_shapes, layer_name
from spearhead.model.checkpoint.source import FullPrecisionSource
from spearhead.model.checkpoint.tensor_files import (
    TensorFiles,
    combined_digest,
    file_digest,
    find_tensor_files,
    read_json,
)
from spearhead.model.quantization import InputGroups


class FolderCheckpoint:
    """Weights in float16, bfloat16 or float32 safetensors files.

    Args:
        path: The folder.
        config: Its parsed ``config.json``.

    Raises:
        CheckpointError: Files, tensors, shapes or types are not as ``config.json`` says.
    """

    quantization = ""
    input_groups: Mapping[str, InputGroups] = MappingProxyType({})
    compensators: CompensatorSet | None = None
    full_precision_source: FullPrecisionSource | None = None
    variants: tuple[str, ...] = ("fp16",)

    def __init__(self, path: Path, config: Mapping[str, Any]) -> None:
        self.path = path
        self.hugging_face_config = config
        self.generation_config = read_generation_config(path)
        self.config = ModelConfig.from_hugging_face(config, self.generation_config)
        self._files = TensorFiles(find_tensor_files(path))
        self.shapes: Mapping[str, tuple[int, ...]] = self._files.shapes
        try:
            check_shapes(self.config, self.shapes, str(path))
            for name in expected_shapes(self.config):
                self._files.float_dtype(name)
            check_tied_head(self.config, self.shapes, self.tensor, str(path))
            self.weight_dtype = self._files.float_dtype(layer_name(0, "self_attn.q_proj.weight"))
        except BaseException:
            self._files.close()
            raise

    @cached_property
    def weight_digests(self) -> Mapping[str, str]:
        """SHA-256 of the safetensors files."""
        return self._files.digests()

    @cached_property
    def revision(self) -> str:
        """Digest of ``config.json`` and the weights."""
        digests = {"config.json": file_digest(self.path / "config.json")}
        return combined_digest({**digests, **self.weight_digests})

    @property
    def stored_bytes(self) -> int:
        """Bytes of the weights, each tensor in the type it is stored in."""
        return self._files.stored_bytes(expected_shapes(self.config))

    def tensor(self, name: str) -> Tensor:
        """One tensor, as stored."""
        return self._files.tensor(name)

    def quantized_weight(self, module: str) -> None:
        """``None``: every module is dense."""

    def close(self) -> None:
        """Closes the files."""
        self._files.close()


def read_generation_config(folder: Path) -> dict[str, Any] | None:
    """The ``generation_config.json``, if there is one."""
    path = folder / "generation_config.json"
    return read_json(path) if path.exists() else None
