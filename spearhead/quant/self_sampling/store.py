"""Sampled sequences, and the file that keeps them with what they were sampled from."""

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from spearhead.errors import CalibrationError
from spearhead.model.checkpoint.durable import put_in_place
from spearhead.quant.self_sampling.config import SamplingTokens, SelfSamplingConfig

_VERSION = 1
_HEADER = "spearhead_self_sampling"


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOrigin:
    """Everything that decides what is sampled.

    Attributes:
        config: How.
        tokens: The frame of documents.
        revision: Digest of the model that wrote the sequences.
    """

    config: SelfSamplingConfig
    tokens: SamplingTokens
    revision: str

    def fields(self) -> dict[str, Any]:
        """As JSON values by name."""
        values = {"revision": self.revision, **asdict(self.config), **asdict(self.tokens)}
        fields: dict[str, Any] = json.loads(json.dumps(values))
        return fields


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledSequences:
    """S sequences of T tokens. A row may hold several documents, one after the other.

    Attributes:
        token_ids: int32 ``(S, T)`` on the CPU.
        document_starts: bool ``(S, T)``: the first token of each document, which no prediction is asked for.
        rejected: Sequences that were drawn again as they repeated themselves.
        origin: What they were sampled from.
    """

    token_ids: Tensor
    document_starts: Tensor
    rejected: int
    origin: SamplingOrigin

    def select(self, rows: Iterable[int]) -> "SampledSequences":
        """Some of the sequences, in the order given."""
        index = torch.tensor(list(rows), dtype=torch.int64)
        return replace(self, token_ids=self.token_ids[index], document_starts=self.document_starts[index])

    def split(self, holdout: float = 0.1) -> tuple["SampledSequences", "SampledSequences"]:
        """Training and held-out part. Which sequence goes where depends on the seed and S alone.

        Raises:
            CalibrationError: A part would be empty.
        """
        count = len(self.token_ids)
        kept_aside = max(1, round(count * holdout))
        if not 0.0 < holdout < 1.0 or kept_aside >= count:
            raise CalibrationError(
                f"a share of {holdout} of {count} sequences cannot be kept aside; give a share between 0 and "
                "1, and at least 2 sequences"
            )
        seed = self.origin.config.seed
        order = sorted(range(count), key=lambda i: hashlib.sha256(f"{seed}/{i}".encode()).digest())
        return self.select(sorted(order[kept_aside:])), self.select(sorted(order[:kept_aside]))

    def save(self, path: Path) -> None:
        """Writes one safetensors file; a reader sees all of it or nothing.

        Raises:
            CalibrationError: The file cannot be written.
        """
        header = {"version": _VERSION, "rejected": self.rejected, **self.origin.fields()}
        part = path.with_name(f"{path.name}.part-{os.getpid()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            save_file(
                {"token_ids": self.token_ids, "document_starts": self.document_starts},
                part,
                metadata={_HEADER: json.dumps(header)},
            )
            put_in_place(part, path)
        except (OSError, SafetensorError) as error:
            part.unlink(missing_ok=True)
            raise CalibrationError(
                f"{path} cannot be written: {error}; free space or choose another folder"
            ) from error


def load_sequences(path: Path, origin: SamplingOrigin, *, any_batch_size: bool = False) -> SampledSequences:
    """Reads sequences and checks that they are the ones that ``origin`` would give.

    Args:
        path: The file.
        origin: What they must be sampled from.
        any_batch_size: However many were written in step: then the result's origin says how many.

    Raises:
        CalibrationError: Not a file of sequences, a damaged one, or one of another model or configuration;
            the message names each difference.
    """
    try:
        with safe_open(path, "pt") as file:
            header = json.loads((file.metadata() or {})[_HEADER])
            token_ids, starts = file.get_tensor("token_ids"), file.get_tensor("document_starts")
        if any_batch_size:
            batch_size = int(header["batch_size"])
            origin = replace(origin, config=replace(origin.config, batch_size=batch_size))
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise CalibrationError(f"{path} does not hold sampled sequences: {error}; delete it") from error
    _check(path, header, {"version": _VERSION, **origin.fields()})
    if token_ids.shape != starts.shape or token_ids.ndim != 2 or token_ids.dtype != torch.int32:
        raise CalibrationError(f"{path} holds tensors of wrong shape or type; delete it and sample again")
    return SampledSequences(
        token_ids=token_ids, document_starts=starts, rejected=int(header["rejected"]), origin=origin
    )


def _check(path: Path, found: dict[str, Any], expected: dict[str, Any]) -> None:
    differing = [
        f"{name} is {_short(found.get(name))}, wanted {_short(value)}"
        for name, value in expected.items()
        if found.get(name) != value
    ]
    if differing:
        raise CalibrationError(
            f"{path} was sampled otherwise: {'; '.join(differing)}. Delete it to sample again, or use the "
            "configuration and the model it was made with"
        )


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
