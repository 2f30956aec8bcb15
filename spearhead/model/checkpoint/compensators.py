"""Reading ``spear/ec.safetensors`` and ``spear/ec.json``, and refusing what was fitted to other weights."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from spearhead.errors import CheckpointError
from spearhead.model.checkpoint.tensor_files import TensorFiles, file_digest, read_json
from spearhead.model.weights import Gate, PlacedCompensator

_VERSION = 1
_GATE_PARTS = ("w1", "b1", "w2", "b2")


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


def load_compensators(
    file: Path, *, modules: Mapping[str, tuple[int, int]], w4_digests: Mapping[str, str], quantization: str
) -> CompensatorSet:
    """Reads compensators and checks that they belong to these 4-bit weights.

    Args:
        file: The safetensors file; its description is the ``.json`` beside it.
        modules: Linear modules and their (outputs, inputs).
        w4_digests: File name to SHA-256 of the 4-bit weights.
        quantization: The checkpoint's quantiser, as :attr:`QuantizationScheme.description` says it.

    Raises:
        CheckpointError: Damaged files, another version, other weights, unknown modules, wrong shapes.
    """
    description = file.with_suffix(".json")
    _check_description(description, w4_digests, quantization)
    files = TensorFiles([file])
    try:
        names = {name.partition(".ec.")[0] for name in files.shapes}
        unknown = sorted(names - modules.keys())
        if unknown:
            raise CheckpointError(f"{file} corrects {unknown[0]}, which the model does not have")
        return CompensatorSet(
            by_module={name: _read(files, name, modules[name]) for name in sorted(names)},
            digest=_digest(file, description),
            stored_bytes=files.stored_bytes(files.shapes),
        )
    finally:
        files.close()


def _check_description(path: Path, w4_digests: Mapping[str, str], quantization: str) -> None:
    description = read_json(path)
    if description.get("version") != _VERSION:
        raise CheckpointError(
            f"{path} is of version {description.get('version')!r}; this software reads {_VERSION}"
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


def _read(files: TensorFiles, module: str, shape: tuple[int, int]) -> Compensator:
    outputs, inputs = shape
    a, b = (_tensor(files, f"{module}.ec.{part}") for part in ("A", "B"))
    rank = a.shape[0]
    if a.shape != (rank, inputs) or b.shape != (outputs, rank):
        raise CheckpointError(
            f"compensator of {module} has A {tuple(a.shape)} and B {tuple(b.shape)}; expected "
            f"(rank, {inputs}) and ({outputs}, rank)"
        )
    return Compensator(a=a, b=b, gate=_read_gate(files, module, rank))


def _read_gate(files: TensorFiles, module: str, rank: int) -> Gate | None:
    names = {part: f"{module}.ec.gate.{part}" for part in _GATE_PARTS}
    if not any(name in files.shapes for name in names.values()):
        return None
    w1, b1, w2, b2 = (_tensor(files, name) for name in names.values())
    hidden = b1.shape[0]
    found = (w1.shape, b1.shape, w2.shape, b2.shape)
    if found != ((hidden, rank), (hidden,), (rank, hidden), (rank,)):
        raise CheckpointError(
            f"gate of {module} has shapes {[tuple(shape) for shape in found]}, which do not fit rank {rank}"
        )
    return Gate(w1=w1, b1=b1, w2=w2, b2=b2)


def _tensor(files: TensorFiles, name: str) -> Tensor:
    files.float_dtype(name)
    tensor = files.tensor(name).float().clone()
    if not bool(torch.isfinite(tensor).all()):
        raise CheckpointError(f"tensor {name} of the compensators holds NaN or infinity")
    return tensor


def _digest(*paths: Path) -> str:
    joined = "".join(file_digest(path) for path in paths)
    return f"sha256:{hashlib.sha256(joined.encode()).hexdigest()}"
