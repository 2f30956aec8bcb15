"""Stage 1: the calibration sequences: sampled from the model, read from a file, or cut out of a text."""

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from spearhead.quant.calibration.config import LEAST_DECIDING, CalibrationConfig
from spearhead.quant.calibration.models import Models
from spearhead.quant.calibration.progress import Progress
from spearhead.quant.calibration.store import StageResult, StageStore
from spearhead.quant.device import machine_bytes
from spearhead.quant.lesson import token_weights
from spearhead.quant.quantizing.calibration import read_sequences
from spearhead.quant.self_sampling import (
    SampledSequences,
    SamplingOrigin,
    SamplingTokens,
    SelfSamplingConfig,
    load_sequences,
    self_sample,
)
from spearhead.quant.sequences import TokenBatch

STAGE = "self-sampling"
_CACHE_SHARE = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationTexts:
    """What a calibration learns from, and what it decides on.

    Attributes:
        whole: All of them.
        training: For statistics, damage and training.
        looks: Half of the held-out part: says when training stops, and which of two gated rungs is tried.
        held_out: The other half, at least :data:`LEAST_DECIDING`: for decisions alone.
        skip_first: Tokens at the start of each document that do not count.
        result: The stage, for its key and time.
        described: Where the sequences come from, for people.
    """

    whole: SampledSequences
    training: SampledSequences
    looks: SampledSequences
    held_out: SampledSequences
    skip_first: int
    result: StageResult
    described: str

    def batches(self, count: int, batch_size: int) -> list[TokenBatch]:
        """The first ``count`` training sequences; what does not count is not valid."""
        part = self.training.select(range(min(count, len(self.training.token_ids))))
        valid = counted(part, self.skip_first).bool()
        return [
            TokenBatch(token_ids=part.token_ids[rows].long(), valid=valid[rows])
            for rows in torch.split(torch.arange(len(valid)), batch_size)
        ]


def counted(sequences: SampledSequences, skip_first: int) -> Tensor:
    """float32 ``(S, T)``: 1 on tokens after which a prediction counts.

    Neither the first tokens of a document do, nor its last, after which another document begins.
    """
    weights = token_weights(sequences.document_starts, skip_first)
    weights[:, :-1] *= ~sequences.document_starts[:, 1:]
    return weights


def gather_sequences(
    store: StageStore,
    models: Models,
    config: CalibrationConfig,
    *,
    text: Path | None = None,
    file: Path | None = None,
    progress: Progress,
) -> CalibrationTexts:
    """Samples, reads or cuts, and splits.

    Args:
        store: Keeps the result.
        models: The teacher writes.
        config: How many, how long.
        text: Cut its windows instead of sampling.
        file: Take what an earlier run saved instead of sampling.
        progress: Told of tokens.

    Raises:
        CalibrationError: The model writes no text, or a file does not hold what it should.
    """
    tokens = SamplingTokens.of(
        models.subject.tokenizer,
        vocab_size=models.subject.full.config.vocab_size,
        chat=config.sampling.chat_fraction > 0,
    )
    origin = SamplingOrigin(
        config=_fitting(config.sampling, models), tokens=tokens, revision=models.subject.full.revision
    )
    depends: dict[str, Any] = {
        **origin.fields(),
        "dtype": str(models.dtype),
        "device": models.device.type,
        "text": "" if text is None else _digest(text),
        "file": "" if file is None else _digest(file),
    }

    def compute(journal: Path) -> StageResult:
        if text is not None:
            return _stored(_windows(text, models, config))
        found = (
            load_sequences(file, origin) if file is not None else _sampled(models, origin, journal, progress)
        )
        return _stored(found.token_ids, found.document_starts, found.rejected)

    result = store.stage(STAGE, depends, compute)
    whole = SampledSequences(
        token_ids=result.tensors["token_ids"],
        document_starts=result.tensors["document_starts"],
        rejected=int(result.values["rejected"]),
        origin=origin,
    )
    training, aside = whole.split(config.holdout)
    deciding = max(LEAST_DECIDING, len(aside.token_ids) // 2)
    progress(STAGE, whole.token_ids.numel(), whole.token_ids.numel())
    return CalibrationTexts(
        whole=whole,
        training=training,
        looks=aside.select(range(deciding, len(aside.token_ids))),
        held_out=aside.select(range(deciding)),
        skip_first=config.skip_first,
        result=result,
        described=_described(len(whole.token_ids), text, file),
    )


def _sampled(models: Models, origin: SamplingOrigin, journal: Path, progress: Progress) -> SampledSequences:
    return self_sample(
        models.teacher(models.dtype),
        origin.config,
        origin.tokens,
        revision=origin.revision,
        work=journal,
        progress=lambda done, total: progress(STAGE, done, total),
    )


def _described(count: int, text: Path | None, file: Path | None) -> str:
    if text is not None:
        return f"{count} windows of {text.name}"
    written = f"{count} sequences that the full-precision model wrote"
    return written if file is None else f"{written}, from {file.name}"


def _fitting(sampling: SelfSamplingConfig, models: Models) -> SelfSamplingConfig:
    """Fewer sequences in step where their keys and values would not fit.

    The batch size is part of what is sampled, so that it follows from the machine and not from what is free.
    """
    config, rows = models.subject.full.config, sampling.batch_size
    values = 2 * config.layer_count * config.kv_head_count * config.head_dim * sampling.length
    limit = _CACHE_SHARE * machine_bytes(models.device)
    while rows > 1 and rows * values * models.dtype.itemsize > limit:
        rows //= 2
    return replace(sampling, batch_size=rows)


def _windows(text: Path, models: Models, config: CalibrationConfig) -> Tensor:
    windows = read_sequences(
        models.subject.full.path,
        text,
        length=config.sampling.length,
        count=config.sampling.sequence_count,
    )
    return torch.tensor(windows, dtype=torch.int32)


def _stored(token_ids: Tensor, starts: Tensor | None = None, rejected: int = 0) -> StageResult:
    if starts is None:
        starts = torch.zeros_like(token_ids, dtype=torch.bool)
        starts[:, 0] = True
    return StageResult(
        values={"rejected": rejected}, tensors={"token_ids": token_ids, "document_starts": starts}
    )


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
