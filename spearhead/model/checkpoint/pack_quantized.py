"""Modules as compressed-tensors' ``pack-quantized`` stores them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from spearhead.errors import CheckpointError
from spearhead.model.architecture import ModelConfig
from spearhead.model.checkpoint.layout import expected_shapes
from spearhead.model.checkpoint.module_reader import (
    Scaling,
    nonzero,
    read_group_index,
    read_scales,
    scale_dtype,
)
from spearhead.model.checkpoint.pack_quantized_config import ModuleSchemes, WeightScheme, parse_schemes
from spearhead.model.checkpoint.tensor_files import FLOATS, TensorFiles
from spearhead.model.checkpoint.words import signed, unpack_words, word_count
from spearhead.model.quantization import InputGroups, QuantizedWeight

_PACKED, _SCALE, _SHAPE = ".weight_packed", ".weight_scale", ".weight_shape"
_ZERO, _INDEX = ".weight_zero_point", ".weight_g_idx"


class PackQuantizedReader:
    """Symmetric or asymmetric, 4 or 8 bits, per channel or per group, each module by its own scheme.

    Args:
        files: The checkpoint's tensors.
        quantization: Its ``quantization_config``.
        model: Its shape.
        path: For messages.

    Raises:
        CheckpointError: A scheme that is not read, or tensors that do not fit theirs.
    """

    def __init__(
        self, files: TensorFiles, quantization: Mapping[str, Any], model: ModelConfig, path: Path
    ) -> None:
        schemes = parse_schemes(quantization, path)
        self._files = files
        modules = [name.removesuffix(_PACKED) for name in files.shapes if name.endswith(_PACKED)]
        self._schemes = {module: _scheme_of(schemes, module, path) for module in modules}
        expected = expected_shapes(model)
        self._sizes = {module: self._size(module, expected) for module in modules}
        for module in modules:
            self._check(module)
        self.scale_dtype = scale_dtype((FLOATS[files.dtypes[m + _SCALE]] for m in modules), str(path))
        self.description = " and ".join(sorted({str(scheme) for scheme in self._schemes.values()}))
        self.shapes = self._logical_shapes()
        self.input_groups = {
            module: InputGroups(
                size=scheme.group_size, act_order=self._scaling(module).group_index is not None
            )
            for module, scheme in self._schemes.items()
        }

    def weight(self, module: str) -> QuantizedWeight:
        """Codes with 8 or 128 subtracted, which is how the format defines them."""
        bits, (_, columns) = self._schemes[module].bits, self._sizes[module]
        scaling = self._scaling(module)
        return QuantizedWeight(
            bits=bits,
            codes=signed(unpack_words(self._files.tensor(module + _PACKED), bits=bits, count=columns), bits),
            scales=scaling.scales,
            zeros=scaling.zeros,
            group_index=scaling.group_index,
        )

    def _size(self, module: str, expected: Mapping[str, tuple[int, ...]]) -> tuple[int, int]:
        self._files.check(module + _SHAPE, (2,), ("I64", "I32"))
        rows, columns = (int(size) for size in self._files.tensor(module + _SHAPE))
        wanted = expected.get(f"{module}.weight", (rows, columns))
        if (rows, columns) != wanted:
            raise CheckpointError(f"{module}{_SHAPE} says {(rows, columns)}, expected {wanted}")
        return rows, columns

    def _check(self, module: str) -> None:
        scheme, (rows, columns) = self._schemes[module], self._sizes[module]
        if scheme.group_size and columns % scheme.group_size:
            raise CheckpointError(
                f"{module} has {columns} inputs, which groups of {scheme.group_size} do not divide; "
                "quantise it with another group size"
            )
        groups = columns // (scheme.group_size or columns)
        self._files.check(module + _PACKED, (rows, word_count(columns, scheme.bits)), ("I32",))
        self._files.check(module + _SCALE, (rows, groups), FLOATS)
        if not scheme.symmetric:
            self._files.check(module + _ZERO, (word_count(rows, scheme.bits), groups), ("I32",))
        if scheme.act_order:
            self._files.check(module + _INDEX, (columns,), ("I32", "I64"))

    def _scaling(self, module: str) -> Scaling:
        scheme = self._schemes[module]
        scales = read_scales(self._files, module + _SCALE)
        return Scaling(
            scales=scales,
            zeros=None if scheme.symmetric else self._zeros(module),
            group_index=read_group_index(self._files, module + _INDEX, scales.shape[1], scheme.group_size)
            if scheme.act_order and scheme.group_size
            else None,
        )

    def _zeros(self, module: str) -> Tensor | None:
        bits, (rows, _) = self._schemes[module].bits, self._sizes[module]
        words = self._files.tensor(module + _ZERO)  # packed along the outputs: (N * bits / 32, G)
        return nonzero(signed(unpack_words(words.T, bits=bits, count=rows), bits).T.contiguous())

    def _logical_shapes(self) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {}
        for name, shape in self._files.shapes.items():
            module, _, part = name.rpartition(".")
            scheme = self._schemes.get(module)
            if scheme is None or f".{part}" not in _parts(scheme):
                shapes[name] = shape
        return shapes | {f"{module}.weight": size for module, size in self._sizes.items()}


def _parts(scheme: WeightScheme) -> set[str]:
    zero = set() if scheme.symmetric else {_ZERO}
    return {_PACKED, _SCALE, _SHAPE} | zero | ({_INDEX} if scheme.act_order else set())


def _scheme_of(schemes: ModuleSchemes, module: str, path: Path) -> WeightScheme:
    scheme = schemes.scheme(module)
    if scheme is None:
        raise CheckpointError(
            f"{path} holds {module}{_PACKED}, but no target of quantization_config matches {module}, or it "
            "is ignored; the weights belong to another config.json"
        )
    return scheme
