"""From the configuration to a drafter."""

import dataclasses
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

import torch

from draft_service.config import DraftConfig
from draft_service.drafter import Drafter
from draft_service.model_drafter import ModelDrafter
from draft_service.ngram_drafter import NgramDrafter
from spearhead.errors import CheckpointError
from spearhead.model.architecture import ModelConfig
from spearhead.model.checkpoint import FP16, Checkpoint, load_variants, open_checkpoint
from spearhead.model.loading import LoadedModel, context_limit, load_model, load_tokenizer
from spearhead.model.weights import ModelWeights
from spearhead.v1 import types_pb2
from spearhead.worker.info import lookup_info, model_info


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedDrafter:
    """A drafter that is ready to serve.

    Attributes:
        drafter: It.
        info: For the handshake.
        model: Its model; ``None`` when it has none.
    """

    drafter: Drafter
    info: types_pb2.ModelInfo
    model: LoadedModel | None


def load(config: DraftConfig) -> LoadedDrafter:
    """Loads the draft model, or only its tokenizer for n-gram look-up.

    Raises:
        CheckpointError, ConfigError: It cannot be used.
    """
    settings = config.model
    with closing(open_checkpoint(settings.path, settings.revision or None)) as checkpoint:
        if config.drafter.kind == "ngram":
            return _load_ngram(config, checkpoint)
        return _load_model(config, checkpoint)


def _load_ngram(config: DraftConfig, checkpoint: Checkpoint) -> LoadedDrafter:
    tokenizer = load_tokenizer(checkpoint.path, checkpoint.config)
    context_length = context_limit(checkpoint.config, config.model)
    drafter = NgramDrafter(
        longest=config.drafter.ngram_longest,
        shortest=config.drafter.ngram_shortest,
        context_length=context_length,
        vocab_size=tokenizer.vocab_size,
    )
    info = lookup_info(
        name=f"{config.model.display_name} (n-gram)",
        tokenizer_hash=tokenizer.hash,
        vocab_size=tokenizer.vocab_size,
        context_length=context_length,
    )
    return LoadedDrafter(drafter=drafter, info=info, model=None)


def _load_model(config: DraftConfig, checkpoint: Checkpoint) -> LoadedDrafter:
    settings = config.model
    if FP16 not in checkpoint.variants:
        raise CheckpointError(
            f"{settings.path} offers {', '.join(checkpoint.variants)}; a draft model runs in full precision, "
            "only the verifier is quantised. Name the full-precision checkpoint"
        )
    config_of_model = checkpoint.config
    kept: Sequence[int] | None = None
    if config.drafter.kind == "layer_skip":
        kept = kept_layers(checkpoint.config.layer_count, config.drafter.layer_share)
        config_of_model = shorter(checkpoint.config, kept)

    def load_weights(dtype: torch.dtype, device: torch.device) -> dict[str, ModelWeights]:
        (weights,) = load_variants(checkpoint, variants=[FP16], dtype=dtype, device=device).values()
        if kept is not None:
            weights = dataclasses.replace(weights, layers=tuple(weights.layers[i] for i in kept))
        return {FP16: weights}

    model = load_model(
        checkpoint, settings, config.kv_cache, config=config_of_model, load_weights=load_weights
    )
    return LoadedDrafter(drafter=ModelDrafter(model.engine), info=model_info(model), model=model)


def kept_layers(layer_count: int, share: float) -> list[int]:
    """Indices of the layers that self-speculation keeps: evenly spread, first and last included."""
    kept = max(2, round(layer_count * share))
    return sorted({round(i * (layer_count - 1) / (kept - 1)) for i in range(kept)})


def shorter(config: ModelConfig, kept: Sequence[int]) -> ModelConfig:
    """The shape of the same model with some of its layers."""
    windows = tuple(config.sliding_windows[i] for i in kept)
    return dataclasses.replace(config, layer_count=len(kept), sliding_windows=windows)
