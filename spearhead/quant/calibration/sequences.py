"""Stage 1: the calibration sequences: sampled from the model, read from a file, or cut out of a text."""

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from spearhead.errors import CalibrationError
from spearhead.model.architecture import ModelConfig
from spearhead.quant.calibration.config import LEAST_DECIDING, CalibrationConfig
from spearhead.quant.calibration.models import Models
from spearhead.quant.calibration.progress import Progress
from spearhead.quant.calibration.store import StageResult, StageStore
from spearhead.quant.device import free_memory_bytes, give_back_memory, machine_bytes
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
_CACHE_BYTES = 36 << 30
"""Keys and values of the sequences that are written in step, at most. No part of it depends on the machine:
the number of sequences decides which ones are sampled."""


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
    tell: Callable[[str], None] = lambda _sentence: None,
) -> CalibrationTexts:
    """Samples, reads or cuts, and splits.

    Args:
        store: Keeps the result.
        models: The teacher writes.
        config: How many, how long.
        text: Cut its windows instead of sampling.
        file: Take what an earlier run saved instead of sampling.
        progress: Told of tokens.
        tell: Told where a text gives fewer windows than were asked for.

    Raises:
        CalibrationError: The model writes no text, a file does not hold what it should, or there are too few
            sequences to hold some out that decide.
    """
    tokens = SamplingTokens.of(
        models.subject.tokenizer,
        vocab_size=models.subject.full.config.vocab_size,
        chat=config.sampling.chat_fraction > 0,
    )
    sampling = (
        config.sampling
        if text or file
        else in_step(config.sampling, models.subject.full.config, models.dtype)
    )
    origin = SamplingOrigin(config=sampling, tokens=tokens, revision=models.subject.full.revision)
    depends: dict[str, Any] = {
        **origin.fields(),
        "dtype": str(models.dtype),
        "device": models.device.type,
        "text": "" if text is None else _digest(text),
        "file": "" if file is None else _digest(file),
    }

    def compute(journal: Path) -> StageResult:
        if text is not None:
            return _stored(_windows(text, models, config), sampling.batch_size)
        found = (
            load_sequences(file, origin, any_batch_size=True)
            if file is not None
            else _sampled(models, origin, journal, progress)
        )
        batch_size = found.origin.config.batch_size
        return _stored(found.token_ids, batch_size, found.document_starts, found.rejected)

    result = store.stage(STAGE, depends, compute)
    whole = SampledSequences(
        token_ids=result.tensors["token_ids"],
        document_starts=result.tensors["document_starts"],
        rejected=int(result.values["rejected"]),
        origin=replace(origin, config=replace(sampling, batch_size=int(result.values["batch_size"]))),
    )
    found = len(whole.token_ids)
    if text is not None and found < config.sampling.sequence_count:
        tell(
            f"{text.name} gives {found} windows, not the {config.sampling.sequence_count} that were asked for"
        )
    _check_enough(found, config)
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
        described=_described(found, text, file),
    )


def _check_enough(count: int, config: CalibrationConfig) -> None:
    """Besides those that decide, one sequence at least has to say when training stops."""
    held_out, least = round(count * config.holdout), LEAST_DECIDING + 1
    if held_out < least:
        raise CalibrationError(
            f"{count} sequences of up to {config.sampling.length} tokens hold out {held_out}, which cannot "
            f"decide: at least {least} are needed, of {math.ceil(least / config.holdout)} sequences; give a "
            "longer text, or lower --sequence-length"
        )


def _sampled(models: Models, origin: SamplingOrigin, journal: Path, progress: Progress) -> SampledSequences:
    source = models.teacher(models.dtype)
    _check_room(origin.config, models)
    sampled = self_sample(
        source,
        origin.config,
        origin.tokens,
        revision=origin.revision,
        work=journal,
        progress=lambda done, total: progress(STAGE, done, total),
    )
    give_back_memory(models.device)  # keys and values were most of it
    return sampled


def _described(count: int, text: Path | None, file: Path | None) -> str:
    if text is not None:
        return f"{count} windows of {text.name}"
    written = f"{count} sequences that the full-precision model wrote"
    return written if file is None else f"{written}, from {file.name}"


def in_step(sampling: SelfSamplingConfig, model: ModelConfig, dtype: torch.dtype) -> SelfSamplingConfig:
    """Fewer sequences in step where their keys and values would take more than :data:`_CACHE_BYTES`."""
    most = max(1, _CACHE_BYTES // _cache_bytes(model, sampling.length, dtype))
    return replace(sampling, batch_size=min(sampling.batch_size, most))


def _cache_bytes(model: ModelConfig, length: int, dtype: torch.dtype) -> int:
    """Of the keys and values of one sequence."""
    return 2 * model.layer_count * model.kv_head_count * model.head_dim * length * dtype.itemsize


def _check_room(sampling: SelfSamplingConfig, models: Models) -> None:
    rows = min(sampling.batch_size, sampling.sequence_count)
    needed = rows * _cache_bytes(models.subject.full.config, sampling.length, models.dtype)
    free = free_memory_bytes(models.device)
    if needed > free:
        whole = machine_bytes(models.device)
        raise CalibrationError(
            f"keys and values of {rows} sequences of {sampling.length} tokens in step take "
            f"{needed / 2**30:.1f} GiB, and {free / 2**30:.1f} of the {whole / 2**30:.1f} GiB of "
            f"{models.device} are free; lower --sampling-batch, which samples other sequences, or make room"
        )


def _windows(text: Path, models: Models, config: CalibrationConfig) -> Tensor:
    windows = read_sequences(
        models.subject.full.path,
        text,
        length=config.sampling.length,
        count=config.sampling.sequence_count,
    )
    return torch.tensor(windows, dtype=torch.int32)


def _stored(
    token_ids: Tensor, batch_size: int, starts: Tensor | None = None, rejected: int = 0
) -> StageResult:
    if starts is None:
        starts = torch.zeros_like(token_ids, dtype=torch.bool)
        starts[:, 0] = True
    return StageResult(
        values={"rejected": rejected, "batch_size": batch_size},
        tensors={"token_ids": token_ids, "document_starts": starts},
    )


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
