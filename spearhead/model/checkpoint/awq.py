"""Modules as AWQ checkpoints store them, version ``gemm``."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from spearhead.errors import CheckpointError
from spearhead.model.architecture import ModelConfig
from spearhead.model.checkpoint.module_reader import module_shapes, nonzero, read_scales, scale_dtype, sharing
from spearhead.model.checkpoint.tensor_files import FLOATS, TensorFiles
from spearhead.model.checkpoint.words import AWQ_ORDER, signed, unpack_words
from spearhead.model.quantization import InputGroups, QuantizedWeight

_WEIGHT, _ZEROS, _SCALES = ".qweight", ".qzeros", ".scales"
_BITS, _PLACES = 4, 8


class AwqReader:
    """4 bits with zero points, inputs first, each word's eight outputs in :data:`AWQ_ORDER`.

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
        self._group_size = max(int(quantization["group_size"]), 0)
        modules = [name.removesuffix(_WEIGHT) for name in files.shapes if name.endswith(_WEIGHT)]
        self._sizes = module_shapes(model, modules)
        for module in modules:
            self._check(module)
            read_scales(files, module + _SCALES)
        self.scale_dtype = scale_dtype((FLOATS[files.dtypes[m + _SCALES]] for m in modules), str(path))
        self.description = f"w{_BITS} awq, {sharing(self._group_size)}"
        self.shapes = self._logical_shapes()
        self.input_groups = {module: InputGroups(size=self._group_size) for module in modules}

    def weight(self, module: str) -> QuantizedWeight:
        """Codes and zero points with 8 subtracted, outputs first."""
        return QuantizedWeight(
            bits=_BITS,
            codes=self._unpack(module + _WEIGHT, module),
            scales=read_scales(self._files, module + _SCALES).T.contiguous(),
            zeros=nonzero(self._unpack(module + _ZEROS, module)),
        )

    def _unpack(self, name: str, module: str) -> Tensor:
        """int8, outputs first."""
        rows, _ = self._sizes[module]
        codes = unpack_words(self._files.tensor(name), bits=_BITS, count=rows, order=AWQ_ORDER)
        return signed(codes, _BITS).T.contiguous()

    def _check(self, module: str) -> None:
        rows, columns = self._sizes[module]
        size = self._group_size or columns
        if rows % _PLACES or columns % size:
            raise CheckpointError(
                f"{module} is {rows} by {columns}; AWQ needs outputs in eights and inputs in groups of {size}"
            )
        self._files.check(module + _WEIGHT, (columns, rows // _PLACES), ("I32",))
        self._files.check(module + _ZEROS, (columns // size, rows // _PLACES), ("I32",))
        self._files.check(module + _SCALES, (columns // size, rows), FLOATS)

    def _logical_shapes(self) -> dict[str, tuple[int, ...]]:
        parts = tuple(module + part for module in self._sizes for part in (_WEIGHT, _ZEROS, _SCALES))
        stored = {name: shape for name, shape in self._files.shapes.items() if name not in set(parts)}
        return stored | {f"{module}.weight": size for module, size in self._sizes.items()}


def _refuse_variants(quantization: Mapping[str, Any], path: Path) -> None:
    supported = {"version": ("gemm",), "bits": (4,), "zero_point": (True,)}
    found = {key: quantization.get(key) for key in supported}
    found["version"] = str(quantization.get("version", "gemm")).lower()
    wrong = [f"{key} {found[key]!r}" for key, values in supported.items() if found[key] not in values]
    size = quantization.get("group_size")
    if not isinstance(size, int) or (size < 1 and size != -1):
        wrong.append(f"group_size {size!r}")
    if wrong:
        raise CheckpointError(
            f"{path} is AWQ with {', '.join(wrong)}; supported is version gemm with 4 bits and zero points. "
            "Choose another checkpoint, or quantise one with `spearhead quantize`"
        )
