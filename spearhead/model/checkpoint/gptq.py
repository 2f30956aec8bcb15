"""Modules as GPTQ checkpoints store them, versions 1 and 2."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from spearhead.errors import CheckpointError
from spearhead.model.architecture import ModelConfig
from spearhead.model.checkpoint.layout import expected_shapes
from spearhead.model.checkpoint.module_reader import (
    Scaling,
    equal_groups,
    group_index,
    module_shapes,
    nonzero,
    read_group_index,
    read_scales,
    scale_dtype,
    sharing,
)
from spearhead.model.checkpoint.tensor_files import FLOATS, TensorFiles
from spearhead.model.checkpoint.words import signed, unpack_words, word_count
from spearhead.model.quantization import InputGroups, QuantizedWeight

_WEIGHT, _ZEROS, _SCALES, _INDEX, _BIAS = ".qweight", ".qzeros", ".scales", ".g_idx", ".bias"
_V1, _V2 = "gptq", "gptq_v2"


class GptqReader:
    """4 or 8 bits, any group size, inputs in order or grouped by activation (``desc_act``).

    Version 1 stores zero points minus one; it is what a configuration without a format means.

    Args:
        files: The checkpoint's tensors.
        quantization: Its ``quantization_config``.
        model: Its shape.
        path: For messages.

    Raises:
        CheckpointError: A variant of the format that is not read, or tensors that do not fit it.
    """

    def __init__(
        self, files: TensorFiles, quantization: Mapping[str, Any], model: ModelConfig, path: Path
    ) -> None:
        _refuse_variants(quantization, path)
        self._files = files
        self._bits = int(quantization["bits"])
        self._zero_offset = 0 if _form(quantization) == _V2 else 1
        self._group_size = max(int(quantization["group_size"]), 0)
        self._needs_index = bool(quantization.get("desc_act", False))
        modules = [name.removesuffix(_WEIGHT) for name in files.shapes if name.endswith(_WEIGHT)]
        self._sizes = module_shapes(model, modules)
        for module in modules:
            self._check(module)
        self.scale_dtype = scale_dtype((FLOATS[files.dtypes[m + _SCALES]] for m in modules), str(path))
        self.shapes = self._logical_shapes(expected_shapes(model))
        self.input_groups: dict[str, InputGroups] = {}
        symmetric = True
        for module in modules:  # one after the other: the scales of a large model take gigabytes
            scaling = self._scaling(module)
            scattered = self._scattered(module, scaling)
            self.input_groups[module] = InputGroups(size=self._group_size, act_order=scattered)
            symmetric &= scaling.zeros is None
        kind = "gptq" if symmetric else "gptq asymmetric"
        order = ", act-order" if any(groups.act_order for groups in self.input_groups.values()) else ""
        self.description = f"w{self._bits} {kind}, {sharing(self._group_size)}{order}"

    def weight(self, module: str) -> QuantizedWeight:
        """Codes and zero points with 8 or 128 subtracted, outputs first."""
        _, columns = self._sizes[module]
        words = self._files.tensor(module + _WEIGHT)  # packed along the inputs: (K * bits / 32, N)
        scaling = self._scaling(module)
        return QuantizedWeight(
            bits=self._bits,
            codes=signed(unpack_words(words.T, bits=self._bits, count=columns), self._bits),
            scales=scaling.scales,
            zeros=scaling.zeros,
            group_index=scaling.group_index,
        )

    def _check(self, module: str) -> None:
        rows, columns = self._sizes[module]
        if rows * self._bits % 32 or columns * self._bits % 32:
            raise CheckpointError(
                f"{module} is {rows} by {columns}; GPTQ stores whole words of {32 // self._bits} codes only"
            )
        groups = self._group_count(columns)
        self._files.check(module + _WEIGHT, (word_count(columns, self._bits), rows), ("I32",))
        self._files.check(module + _ZEROS, (groups, word_count(rows, self._bits)), ("I32",))
        self._files.check(module + _SCALES, (groups, rows), FLOATS)
        if self._needs_index or module + _INDEX in self._files.shapes:
            self._files.check(module + _INDEX, (columns,), ("I32", "I64"))

    def _group_count(self, columns: int) -> int:
        return -(-columns // self._size_of_group(columns))

    def _size_of_group(self, columns: int) -> int:
        return min(self._group_size or columns, columns)

    def _scaling(self, module: str) -> Scaling:
        scales = read_scales(self._files, module + _SCALES).T.contiguous()
        return Scaling(
            scales=scales, zeros=self._zeros(module), group_index=self._index(module, scales.shape[1])
        )

    def _index(self, module: str, groups: int) -> Tensor | None:
        _, columns = self._sizes[module]
        size = self._size_of_group(columns)
        if module + _INDEX in self._files.shapes:
            return read_group_index(self._files, module + _INDEX, groups, size)
        return None if equal_groups(columns, size) else group_index(columns, size)

    def _scattered(self, module: str, scaling: Scaling) -> bool:
        _, columns = self._sizes[module]
        in_order = group_index(columns, self._size_of_group(columns))
        return scaling.group_index is not None and not torch.equal(scaling.group_index, in_order)

    def _zeros(self, module: str) -> Tensor | None:
        rows, _ = self._sizes[module]
        stored = unpack_words(self._files.tensor(module + _ZEROS), bits=self._bits, count=rows)  # (G, N)
        highest = (1 << self._bits) - 1
        if self._zero_offset and bool((stored == highest).any()):
            # Zero minus one does not fit its place: some writers borrow from the next one, some overwrite it.
            raise CheckpointError(
                f"tensor {module}{_ZEROS} stores a zero point of {highest} in GPTQ's first version, which "
                "readers understand differently; use a checkpoint in format gptq_v2"
            )
        zeros = stored.to(torch.int16) + self._zero_offset - (1 << (self._bits - 1))
        return nonzero(zeros.T.contiguous())

    def _logical_shapes(self, expected: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {}
        for name, shape in self._files.shapes.items():
            module, _, part = name.rpartition(".")
            if module not in self._sizes or f".{part}" not in (_WEIGHT, _ZEROS, _SCALES, _INDEX):
                shapes[name] = shape
            if module in self._sizes and f".{part}" == _BIAS and name not in expected:
                self._refuse_bias(name)
                del shapes[name]
        return shapes | {f"{module}.weight": size for module, size in self._sizes.items()}

    def _refuse_bias(self, name: str) -> None:
        # Older writers give every module a bias, of zeros where the model has none.
        if bool(self._files.tensor(name).any()):
            raise CheckpointError(
                f"tensor {name} is not zero, but the model has no such bias; it would be lost"
            )


def _form(quantization: Mapping[str, Any]) -> Any:
    return quantization.get("checkpoint_format") or quantization.get("format") or _V1


def _refuse_variants(quantization: Mapping[str, Any], path: Path) -> None:
    wrong = []
    if _form(quantization) not in (_V1, _V2):
        wrong.append(f"checkpoint_format {_form(quantization)!r}")
    if quantization.get("is_marlin_format"):
        wrong.append("is_marlin_format")
    bits, size = quantization.get("bits"), quantization.get("group_size")
    if bits not in (4, 8):
        wrong.append(f"bits {bits!r}")
    if not isinstance(size, int) or (size < 1 and size != -1):
        wrong.append(f"group_size {size!r}")
    if quantization.get("pack_dtype", "int32") not in ("int32", "torch.int32"):
        wrong.append(f"pack_dtype {quantization['pack_dtype']!r}")
    dynamic = quantization.get("dynamic") or {}
    if not isinstance(dynamic, dict) or any(not str(pattern).startswith("-:") for pattern in dynamic):
        wrong.append("dynamic settings for some modules")
    if wrong:
        raise CheckpointError(
            f"{path} is GPTQ with {', '.join(wrong)}; supported are formats gptq and gptq_v2 with 4 or 8 "
            "bits in int32 and one group size. Choose another, or quantise one with `spearhead quantize`"
        )
