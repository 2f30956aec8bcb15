"""Reading ``spear/ec.safetensors`` and ``spear/ec.json``, and refusing what was fitted to other weights."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from spearhead.errors import CheckpointError
from spearhead.model.checkpoint.factor_codec import EncodedFactor, FactorBits, decode_factor
from spearhead.model.checkpoint.tensor_files import FLOATS, TensorFiles, file_digest, read_json
from spearhead.model.checkpoint.words import word_count
from spearhead.model.weights import Gate, PlacedCompensator

FOLDER, FILE = "spear", "ec.safetensors"
VERSION = 2
"""What is written. Version 1 has 16-bit factors only, and does not say the digest of its tensors."""

_READ_VERSIONS = (1, VERSION)
_GATE_PARTS = ("w1", "b1", "w2", "b2")
_FACTOR_TYPES = {16: tuple(FLOATS), 8: ("I8",), 4: ("I32",)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Compensator:
    """A correction of one linear module: y += b (gate(a x) * a x). All tensors are float32.

    Attributes:
        a: ``(R, K)``.
        b: ``(N, R)``.
        gate: ``None`` = static.
    """

    a: Tensor
    b: Tensor
    gate: Gate | None

    def placed(self, *, row_offset: int, device: torch.device) -> PlacedCompensator:
        """The same correction, of the rows that its module has within a fused projection."""
        gate = self.gate
        if gate is not None:
            w1, b1, w2, b2 = (tensor.to(device) for tensor in (gate.w1, gate.b1, gate.w2, gate.b2))
            gate = Gate(w1=w1, b1=b1, w2=w2, b2=b2)
        return PlacedCompensator(
            row_offset=row_offset,
            row_count=self.b.shape[0],
            a=self.a.to(device),
            b=self.b.to(device),
            gate=gate,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CompensatorSet:
    """All compensators of a checkpoint.

    Attributes:
        by_module: Module name to compensator; modules without one are absent.
        digest: ``sha256:<hex>`` over both files.
        stored_bytes: Bytes of their tensors on disk.
    """

    by_module: Mapping[str, Compensator]
    digest: str
    stored_bytes: int


def find_compensators(folder: Path, named: object) -> Path | None:
    """The file with the compensators of the weights in a folder.

    Args:
        folder: Where the weights are.
        named: ``spear.ec_file`` of ``config.json``. A published checkpoint, whose configuration nobody
            touched, has none; then ``spear/ec.json`` is the sign, and so is half of a pair, which is an
            error when it is read.

    Raises:
        CheckpointError: ``named`` is no file name.
    """
    if named is None:
        file = folder / FOLDER / FILE
        return file if file.exists() or file.with_suffix(".json").exists() else None
    if not isinstance(named, str):
        raise CheckpointError(f"{folder}: spear.ec_file in config.json is {named!r}; it must be a file name")
    return folder / named


def load_compensators(
    file: Path, *, modules: Mapping[str, tuple[int, int]], w4_digests: Mapping[str, str], quantization: str
) -> CompensatorSet:
    """Reads compensators and checks that they belong to these weights.

    Args:
        file: The safetensors file; its description is the ``.json`` beside it.
        modules: Linear modules and their (outputs, inputs).
        w4_digests: File name to SHA-256 of the quantised weights.
        quantization: The checkpoint's quantiser, as it describes itself.

    Raises:
        CheckpointError: Damaged files, another version, other weights, unknown modules, wrong shapes.
    """
    description = file.with_suffix(".json")
    _check_description(description, w4_digests, quantization)
    files = TensorFiles([file])
    try:
        _check_digest(description, file)
        names = {name.partition(".ec.")[0] for name in files.shapes}
        unknown = sorted(names - modules.keys())
        if unknown:
            raise CheckpointError(f"{file} corrects {unknown[0]}, which the model does not have")
        reader = _Reader(files)
        by_module = {name: reader.compensator(name, modules[name]) for name in sorted(names)}
        reader.refuse_rest()
        return CompensatorSet(
            by_module=by_module,
            digest=_digest(file, description),
            stored_bytes=files.stored_bytes(files.shapes),
        )
    finally:
        files.close()


def _check_description(path: Path, w4_digests: Mapping[str, str], quantization: str) -> None:
    description = read_json(path)
    version = description.get("version")
    if version not in _READ_VERSIONS:
        raise CheckpointError(
            f"{path} is of version {version!r}; this software reads "
            f"{' and '.join(str(known) for known in _READ_VERSIONS)}"
        )
    if description.get("w4_sha256") != dict(w4_digests):
        raise CheckpointError(
            f"the compensators beside {path} were fitted to other 4-bit weights (SHA-256 differs); using "
            "them would make the output worse. Calibrate again for these weights, or remove the folder"
        )
    if description.get("quantization") != quantization:
        raise CheckpointError(
            f"{path} says {description.get('quantization')!r}, the weights are {quantization!r}; "
            "calibrate again"
        )


def _check_digest(path: Path, file: Path) -> None:
    description = read_json(path)
    if description["version"] != 1 and description.get("ec_sha256") != file_digest(file):
        raise CheckpointError(
            f"{path} describes another {file.name} than the one beside it (SHA-256 differs); copy both again"
        )


class _Reader:
    """Takes compensators out of a file, and knows what nobody took."""

    def __init__(self, files: TensorFiles) -> None:
        self._files = files
        self._rest = set(files.shapes)

    def compensator(self, module: str, shape: tuple[int, int]) -> Compensator:
        outputs, inputs = shape
        a = self._factor(f"{module}.ec.A", inputs, rank_axis=0)
        b = self._factor(f"{module}.ec.B", outputs, rank_axis=1)
        if a.shape[0] != b.shape[0]:
            raise CheckpointError(
                f"compensator of {module} has A of rank {a.shape[0]}, B of rank {b.shape[0]}"
            )
        return Compensator(a=a, b=b.T.contiguous(), gate=self._gate(module, a.shape[0]))

    def refuse_rest(self) -> None:
        if self._rest:
            raise CheckpointError(
                f"tensor {min(self._rest)} is no part of a compensator that is read here, and ignoring it "
                "would change the output"
            )

    def _factor(self, name: str, length: int, rank_axis: int) -> Tensor:
        """A factor with its ranks as rows, ``(R, length)``."""
        stored, bits = self._storage(name)
        if bits == 4:
            rank_axis = 0  # words are packed along a rank
        width = word_count(length, 4) if bits == 4 else length
        shape = self._files.shapes[stored]
        if len(shape) != 2 or shape[1 - rank_axis] != width or not shape[rank_axis]:
            expected = f"({width}, rank)" if rank_axis else f"(rank, {width})"
            raise CheckpointError(f"tensor {stored} has shape {shape}; expected {expected}")
        values = self._take(stored, shape, _FACTOR_TYPES[bits])
        scales = None if bits == 16 else self._take(f"{name}_scale", (shape[rank_axis],), tuple(FLOATS))
        factor = EncodedFactor(
            bits=bits, values=values.T if rank_axis else values, scales=scales, length=length
        )
        return _finite(decode_factor(factor), stored)

    def _storage(self, name: str) -> tuple[str, FactorBits]:
        """Under which name a factor is stored, and in how many bits."""
        packed = f"{name}_packed"
        if packed in self._files.shapes:
            return packed, 4
        if name not in self._files.shapes:
            raise CheckpointError(f"the compensators hold neither tensor {name} nor {packed}")
        return name, 8 if self._files.dtypes[name] == "I8" else 16

    def _gate(self, module: str, rank: int) -> Gate | None:
        names = {part: f"{module}.ec.gate.{part}" for part in _GATE_PARTS}
        if not any(name in self._files.shapes for name in names.values()):
            return None
        hidden = self._files.shapes.get(names["b1"], (0,))[0:1]
        shapes = {"w1": (*hidden, rank), "b1": hidden, "w2": (rank, *hidden), "b2": (rank,)}
        w1, b1, w2, b2 = (
            _finite(self._take(names[part], shapes[part], tuple(FLOATS)).float(), names[part])
            for part in _GATE_PARTS
        )
        return Gate(w1=w1, b1=b1, w2=w2, b2=b2)

    def _take(self, name: str, shape: tuple[int, ...], dtypes: tuple[str, ...]) -> Tensor:
        """A copy, which needs no open file."""
        self._files.check(name, shape, dtypes)
        self._rest.discard(name)
        return self._files.tensor(name).clone()


def _finite(tensor: Tensor, name: str) -> Tensor:
    if not bool(torch.isfinite(tensor).all()):
        raise CheckpointError(f"tensor {name} of the compensators holds NaN or infinity")
    return tensor


def _digest(*paths: Path) -> str:
    joined = "".join(file_digest(path) for path in paths)
    return f"sha256:{hashlib.sha256(joined.encode()).hexdigest()}"
