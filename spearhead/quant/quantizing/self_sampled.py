"""Calibration tokens that the model writes itself, for methods that need statistics and are given no text."""

from collections.abc import Callable
from pathlib import Path

import torch

from spearhead.model.architecture import ModelConfig
from spearhead.model.checkpoint import Checkpoint
from spearhead.quant.device import free_memory_bytes
from spearhead.quant.layers import (
    LayerSource,
    ResidentLayers,
    StreamedLayers,
    model_bytes,
    streaming_notice,
)
from spearhead.quant.quantizing.settings import RunSettings
from spearhead.quant.self_sampling import SamplingTokens, SelfSamplingConfig, self_sample
from spearhead.tokenizer import Tokenizer

_SHARE_OF_MEMORY = 0.5
_CACHE_BYTES = 4 << 30
"""Keys and values of the sequences that are written together. No part of it depends on the machine: the
number of sequences decides which ones are sampled."""
_MOST_ROWS = 256


def sampled_sequences(
    checkpoint: Checkpoint,
    *,
    count: int,
    length: int,
    settings: RunSettings,
    work: Path,
    progress: Callable[[int, int], None] | None = None,
    tell: Callable[[str], None] = lambda _sentence: None,
) -> list[list[int]]:
    """Samples from a full-precision checkpoint: the same for the same arguments on the same kind of machine.

    Another kind of processor or GPU, or another version of torch, rounds otherwise and may draw other tokens.

    Args:
        checkpoint: Open.
        count: Sequences.
        length: Tokens of each.
        settings: Device and dtype of the forward pass.
        work: Finished batches wait here for a run that is called again.
        progress: Told the tokens written and wanted.
        tell: Told in a sentence if the model does not fit into memory.

    Raises:
        CheckpointError: A tensor cannot be read.
        CalibrationError: The model writes no usable text.
    """
    tokens = SamplingTokens.of(
        Tokenizer.load(checkpoint.path), vocab_size=checkpoint.config.vocab_size, chat=False
    )
    sampled = self_sample(
        _layers(checkpoint, settings, tell),
        SelfSamplingConfig(
            sequence_count=count,
            length=length,
            batch_size=rows_at_once(checkpoint.config, length, getattr(torch, settings.dtype).itemsize),
        ),
        tokens,
        revision=checkpoint.revision,
        work=work,
        progress=progress,
    )
    return [[int(token) for token in row] for row in sampled.token_ids]


def rows_at_once(config: ModelConfig, length: int, item_bytes: int) -> int:
    """How many sequences of ``length`` tokens are written together, at least one."""
    per_token = 2 * config.layer_count * config.kv_head_count * config.head_dim * item_bytes
    return max(1, min(_MOST_ROWS, _CACHE_BYTES // (per_token * length)))


def _layers(checkpoint: Checkpoint, settings: RunSettings, tell: Callable[[str], None]) -> LayerSource:
    """In memory if there is room: every token needs every layer."""
    device, dtype = torch.device(settings.device), getattr(torch, settings.dtype)
    streamed = StreamedLayers(checkpoint, dtype=dtype, device=device)
    needed, left = model_bytes(checkpoint, dtype), int(_SHARE_OF_MEMORY * free_memory_bytes(device))
    if needed <= left:
        return ResidentLayers(streamed)
    tell(streaming_notice(checkpoint.path, needed, left))
    return streamed
