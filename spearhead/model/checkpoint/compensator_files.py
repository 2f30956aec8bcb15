"""Writing ``spear/ec.safetensors`` and ``spear/ec.json`` beside quantised weights."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from spearhead.errors import CheckpointError
from spearhead.model.checkpoint.compensators import FILE, FOLDER, VERSION, Compensator
from spearhead.model.checkpoint.durable import put_in_place
from spearhead.model.checkpoint.factor_codec import EncodedFactor, decode_factor
from spearhead.model.checkpoint.tensor_files import file_digest
from spearhead.model.weights import Gate


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCompensator:
    """A compensator as it goes to disk.

    Attributes:
        a: Of ``(R, K)``.
        b: The transpose of B: ``(R, N)``.
        gate: In any float, which is how it is stored.
    """

    a: EncodedFactor
    b: EncodedFactor
    gate: Gate | None = None

    def decode(self) -> Compensator:
        """What :func:`~spearhead.model.checkpoint.compensators.load_compensators` will make of it."""
        gate = self.gate
        if gate is not None:
            gate = Gate(w1=gate.w1.float(), b1=gate.b1.float(), w2=gate.w2.float(), b2=gate.b2.float())
        return Compensator(a=decode_factor(self.a), b=decode_factor(self.b).T.contiguous(), gate=gate)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompensatorDescription:
    """What ``ec.json`` says.

    Attributes:
        w4_sha256: File name to SHA-256 of the weights that the compensators were fitted to.
        quantization: How those describe themselves.
        details: Anything for people: how it was fitted, what was measured. JSON.
    """

    w4_sha256: Mapping[str, str]
    quantization: str
    details: Mapping[str, Any]


def save_compensators(
    folder: Path, compensators: Mapping[str, StoredCompensator], description: CompensatorDescription
) -> Path:
    """Writes compensators into the folder of the weights; the weights and ``config.json`` stay as they are.

    Earlier compensators are replaced, or stay if writing fails. A reader never takes half of one pair and
    half of another for a whole: the description says the digest of its tensors.

    Args:
        folder: Where the quantised weights are.
        compensators: By module name.
        description: What they belong to.

    Returns:
        The safetensors file.

    Raises:
        CheckpointError: No compensators, NaN or infinity, or factors that do not fit together.
    """
    if not compensators:
        raise CheckpointError(f"there are no compensators to write to {folder}; select at least one module")
    tensors: dict[str, Tensor] = {}
    for module, compensator in sorted(compensators.items()):
        _check(module, compensator)
        tensors |= _tensors(module, compensator)
    file = folder / FOLDER / FILE
    with exchanged_pair(file) as (written, described):
        save_file(tensors, written, metadata={"format": "pt"})
        written.chmod(0o644)  # the library keeps it private
        document = {
            **description.details,
            "version": VERSION,
            "quantization": description.quantization,
            "w4_sha256": dict(description.w4_sha256),
            "ec_sha256": file_digest(written),
        }
        text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
        described.write_text(text, encoding="utf-8")
    return file


@contextmanager
def exchanged_pair(file: Path) -> Iterator[tuple[Path, Path]]:
    """Where to write compensators and their description, which take their places when both are whole.

    Until then what was there stays. A kill between the two renames leaves halves of two pairs, which readers
    refuse.

    Args:
        file: The place of the safetensors file; its folder is made.
    """
    file.parent.mkdir(exist_ok=True)
    written, described = file.with_suffix(".partial"), file.with_suffix(".json.partial")
    try:
        yield written, described
        put_in_place(written, file)
        put_in_place(described, file.with_suffix(".json"))
    except BaseException:
        written.unlink(missing_ok=True)
        described.unlink(missing_ok=True)
        raise


def _check(module: str, compensator: StoredCompensator) -> None:
    decoded = compensator.decode()
    rank, gate = decoded.a.shape[0], decoded.gate
    if decoded.b.shape[1] != rank or not rank:
        raise CheckpointError(f"compensator of {module} has A of rank {rank}, B of rank {decoded.b.shape[1]}")
    parts = [decoded.a, decoded.b]
    if gate is not None:
        hidden = gate.b1.shape[0]
        parts += [gate.w1, gate.b1, gate.w2, gate.b2]
        shapes = [tuple(part.shape) for part in parts[2:]]
        if shapes != [(hidden, rank), (hidden,), (rank, hidden), (rank,)]:
            raise CheckpointError(f"gate of {module} has shapes {shapes}, which do not fit rank {rank}")
    if not all(bool(torch.isfinite(part).all()) for part in parts):
        raise CheckpointError(f"compensator of {module} holds NaN or infinity; fit it again")


def _tensors(module: str, compensator: StoredCompensator) -> dict[str, Tensor]:
    prefix = f"{module}.ec."
    tensors = _factor(f"{prefix}A", compensator.a, transposed=False)
    tensors |= _factor(f"{prefix}B", compensator.b, transposed=True)
    gate = compensator.gate
    if gate is not None:
        parts = {"w1": gate.w1, "b1": gate.b1, "w2": gate.w2, "b2": gate.b2}
        tensors |= {f"{prefix}gate.{part}": tensor.contiguous() for part, tensor in parts.items()}
    return tensors


def _factor(name: str, factor: EncodedFactor, *, transposed: bool) -> dict[str, Tensor]:
    scales = {} if factor.scales is None else {f"{name}_scale": factor.scales.contiguous()}
    if factor.bits == 4:
        return {f"{name}_packed": factor.values.contiguous()} | scales
    return {name: (factor.values.T if transposed else factor.values).contiguous()} | scales
