"""A GGUF file, dequantised tensor by tensor."""

import re
from collections.abc import Mapping
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFValueType
from torch import Tensor

from spearhead.errors import CheckpointError
from spearhead.model.architecture import ModelConfig
from spearhead.model.checkpoint.compensators import CompensatorSet
from spearhead.model.checkpoint.gguf_config import config_from_gguf
from spearhead.model.checkpoint.layout import EMBEDDING, FINAL_NORM, HEAD, check_shapes, expected_shapes
from spearhead.model.checkpoint.source import FullPrecisionSource
from spearhead.model.checkpoint.tensor_files import file_digest

_GLOBAL = {"token_embd": EMBEDDING, "output_norm": FINAL_NORM, "output": HEAD}
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_ROPE_DIVISORS = "rope_freqs.weight"
_DTYPES = {GGMLQuantizationType.F32: "float32", GGMLQuantizationType.BF16: "bfloat16"}
_ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
# The reader indexes past the end of a damaged file in many ways.
_READER_ERRORS = (ValueError, IndexError, KeyError, OverflowError, TypeError, OSError, MemoryError)


class GgufCheckpoint:
    """A model in one GGUF file. Block-quantised tensors are its full precision: they are dequantised.

    Args:
        path: The file.

    Raises:
        CheckpointError: Damaged, of an architecture or tensor type that is not supported, or incomplete.
    """

    quantization = ""
    compensators: CompensatorSet | None = None
    full_precision_source: FullPrecisionSource | None = None
    generation_config: Mapping[str, Any] | None = None
    variants: tuple[str, ...] = ("fp16",)

    def __init__(self, path: Path) -> None:
        self.path = path
        reader = _read(path)
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        shapes = {
            name: tuple(int(size) for size in reversed(tensor.shape))
            for name, tensor in self._tensors.items()
        }
        divisors = self._dequantize(_ROPE_DIVISORS).tolist() if _ROPE_DIVISORS in shapes else None
        shapes.pop(_ROPE_DIVISORS, None)
        metadata = _metadata(reader)
        self._permuted = metadata.get("general.architecture") == "llama"
        first = self._tensors.get("blk.0.attn_q.weight")
        self.weight_dtype = _DTYPES.get(first.tensor_type, "float16") if first is not None else "float16"
        self.hugging_face_config: Mapping[str, Any] = config_from_gguf(
            metadata, shapes, rope_divisors=divisors, weight_dtype=self.weight_dtype
        )
        self.config = ModelConfig.from_hugging_face(self.hugging_face_config)
        self._names = {_canonical(name): name for name in shapes}
        self.shapes: Mapping[str, tuple[int, ...]] = {_canonical(name): shapes[name] for name in shapes}
        check_shapes(self.config, self.shapes, str(path))

    @cached_property
    def revision(self) -> str:
        """Digest of the file."""
        return f"sha256:{file_digest(self.path)}"

    @property
    def stored_bytes(self) -> int:
        """Bytes of the weights in ``weight_dtype``; the file itself may be smaller."""
        elements = sum(prod(shape) for shape in expected_shapes(self.config).values())
        return elements * _ITEM_BYTES[self.weight_dtype]

    def tensor(self, name: str) -> Tensor:
        """One tensor in float32, rows in Hugging Face's order."""
        if name not in self._names:
            raise CheckpointError(f"tensor {name} is not in {self.path}")
        values = self._dequantize(self._names[name])
        if self._permuted and ".self_attn.q_proj." in name:
            return _undo_permutation(values, self.config.head_count)
        if self._permuted and ".self_attn.k_proj." in name:
            return _undo_permutation(values, self.config.kv_head_count)
        return values

    def _dequantize(self, name: str) -> Tensor:
        tensor = self._tensors[name]
        try:
            values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError:
            raise CheckpointError(
                f"{self.path}: tensor {name} is of type {tensor.tensor_type.name}, which cannot be "
                "dequantised here; use a Q4_0, Q4_1, Q8_0, F16 or BF16 file"
            ) from None
        return torch.from_numpy(np.array(values, dtype=np.float32))

    def close(self) -> None:
        """Lets go of the mapped file."""
        self._tensors.clear()


class _Reader(gguf.GGUFReader):  # type: ignore[misc]
    """The library's reader over a plain array: parsing slices it for every token of the vocabulary."""

    @property
    def data(self) -> Any:
        return self._bytes

    @data.setter
    def data(self, mapped: Any) -> None:
        self._bytes = np.asarray(mapped)  # the same memory; slicing a memmap takes three times as long


def _read(path: Path) -> Any:
    try:
        return _Reader(path)
    except _READER_ERRORS as error:
        raise CheckpointError(
            f"{path} ({path.stat().st_size} bytes) is no readable GGUF file, or is truncated: {error}. "
            "Download it again"
        ) from error


def _metadata(reader: Any) -> dict[str, Any]:
    """The key-value pairs without the tokenizer's long arrays."""
    return {
        key: field.contents()
        for key, field in reader.fields.items()
        if not (key.startswith("tokenizer.") and field.types[0] == GGUFValueType.ARRAY)
    }


def _canonical(name: str) -> str:
    """The Hugging Face name of a GGUF tensor; a name that has none stays as it is."""
    stem, _, kind = name.rpartition(".")
    if stem in _GLOBAL and kind == "weight":
        return _GLOBAL[stem]
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)", stem)
    if match is None or match[2] not in _IN_LAYER:
        return name
    return f"model.layers.{match[1]}.{_IN_LAYER[match[2]]}.{kind}"


def _undo_permutation(values: Tensor, head_count: int) -> Tensor:
    # GGUF keeps Llama's rotary pairs next to each other; Hugging Face keeps them half a head apart.
    rest = values.shape[1:]
    return values.reshape(head_count, -1, 2, *rest).transpose(1, 2).reshape(values.shape)
