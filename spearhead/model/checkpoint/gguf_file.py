"""A GGUF file, dequantised tensor by tensor, or with its blocks kept as codes."""

import re
from collections.abc import Mapping
from dataclasses import replace
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
from spearhead.model.checkpoint.compensators import CompensatorSet, find_compensators, load_compensators
from spearhead.model.checkpoint.gguf_blocks import GROUP_SIZE, check_blocks, decode_blocks, is_decoded
from spearhead.model.checkpoint.gguf_config import config_from_gguf
from spearhead.model.checkpoint.layout import (
    EMBEDDING,
    FINAL_NORM,
    HEAD,
    check_shapes,
    expected_shapes,
    linear_modules,
)
from spearhead.model.checkpoint.source import FullPrecisionSource
from spearhead.model.checkpoint.tensor_files import combined_digest, file_digest, read_json
from spearhead.model.quantization import InputGroups, QuantizedWeight

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
    """A model in one GGUF file.

    Block-quantised tensors are its full precision: they are dequantised. On demand the projections in Q4_0,
    Q4_1 and Q8_0 are its quantised weights instead, with compensators in ``spear`` beside the file,
    unless those are of another file in the folder.

    Args:
        path: The file.
        keep_codes: Offer ``w4`` in place of ``fp16``.

    Raises:
        CheckpointError: Damaged, of an architecture or tensor type that is not supported, or incomplete;
            codes are to be kept and there are none, or their scales are not finite.
    """

    full_precision_source: FullPrecisionSource | None = None
    generation_config: Mapping[str, Any] | None = None

    def __init__(self, path: Path, *, keep_codes: bool = False) -> None:
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
        self._kinds = self._block_kinds() if keep_codes else {}
        self.quantization = _description(self._kinds, path) if keep_codes else ""
        self.compensators = self._load_compensators() if keep_codes else None

    def _block_kinds(self) -> dict[str, GGMLQuantizationType]:
        """The type of each projection whose codes can be kept, by module."""
        kinds = {
            module: self._tensors[self._names[f"{module}.weight"]].tensor_type
            for module in linear_modules(self.config)
        }
        kept = {module: kind for module, kind in kinds.items() if is_decoded(kind)}
        for module, kind in kept.items():
            name = f"{module}.weight"
            check_blocks(self._tensors[self._names[name]].data, kind, where=name)
        return kept

    def _load_compensators(self) -> CompensatorSet | None:
        file = find_compensators(self.path.parent, None)
        if file is None or _of_a_neighbour(file.with_suffix(".json"), self.path):
            return None
        return load_compensators(
            file,
            modules=linear_modules(self.config),
            w4_digests=self.weight_digests,
            quantization=self.quantization,
        )

    @property
    def variants(self) -> tuple[str, ...]:
        """``fp16``; with codes kept ``w4``, and ``w4+ec`` with compensators."""
        if not self.quantization:
            return ("fp16",)
        return ("w4", "w4+ec") if self.compensators is not None else ("w4",)

    @cached_property
    def weight_digests(self) -> Mapping[str, str]:
        """SHA-256 of the file."""
        return {self.path.name: file_digest(self.path)}

    @property
    def input_groups(self) -> Mapping[str, InputGroups]:
        """Groups of 32 wherever codes are kept."""
        return dict.fromkeys(self._kinds, InputGroups(size=GROUP_SIZE))

    @cached_property
    def revision(self) -> str:
        """Digest of the file, and of compensators if there are any."""
        if self.compensators is not None:
            return combined_digest({**self.weight_digests, "compensators": self.compensators.digest})
        return f"sha256:{self.weight_digests[self.path.name]}"

    @property
    def stored_bytes(self) -> int:
        """Bytes of the weights in ``weight_dtype``, even if the file is smaller; with codes, the file's."""
        if self.quantization:
            return sum(int(tensor.n_bytes) for tensor in self._tensors.values())
        elements = sum(prod(shape) for shape in expected_shapes(self.config).values())
        return elements * _ITEM_BYTES[self.weight_dtype]

    def tensor(self, name: str) -> Tensor:
        """One tensor in float32, rows in Hugging Face's order."""
        if name not in self._names:
            raise CheckpointError(f"tensor {name} is not in {self.path}")
        return self._rows_in_order(self._dequantize(self._names[name]), name)

    def quantized_weight(self, module: str) -> QuantizedWeight | None:
        """The codes of a projection; ``None`` when they are not kept, or its type has none that are read."""
        if module not in self._kinds:
            return None
        name = f"{module}.weight"
        weight = decode_blocks(self._tensors[self._names[name]].data, self._kinds[module], where=name)
        zeros, minimums = weight.zeros, weight.minimums
        return replace(
            weight,
            codes=self._rows_in_order(weight.codes, name),
            scales=self._rows_in_order(weight.scales, name),
            zeros=None if zeros is None else self._rows_in_order(zeros, name),
            minimums=None if minimums is None else self._rows_in_order(minimums, name),
        )

    def _rows_in_order(self, values: Tensor, name: str) -> Tensor:
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


def _of_a_neighbour(description: Path, path: Path) -> bool:
    """Whether compensators belong to another file of the folder; of one that is gone they are an error."""
    named = read_json(description).get("w4_sha256") if description.exists() else None
    if not isinstance(named, dict) or path.name in named:
        return False
    return bool(named) and all((path.parent / name).is_file() for name in named)


def _read(path: Path) -> Any:
    try:
        return _Reader(path)
    except _READER_ERRORS as error:
        raise CheckpointError(
            f"{path} ({path.stat().st_size} bytes) is no readable GGUF file, or is truncated: {error}. "
            "Download it again"
        ) from error


def _description(kinds: Mapping[str, GGMLQuantizationType], path: Path) -> str:
    """Such as ``w4 gguf Q4_0, group 32``."""
    names = sorted({kind.name for kind in kinds.values()})
    if not names:
        raise CheckpointError(
            f"{path} holds no projection in Q4_0, Q4_1 or Q8_0, so that there are no codes to keep; choose a "
            "file of one of these types, or let a quantization be made from it"
        )
    return f"w{'8' if names == ['Q8_0'] else '4'} gguf {' and '.join(names)}, group {GROUP_SIZE}"


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
