"""From the configuration to a drafter."""

import dataclasses
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

from draft_service.config import DraftConfig
from draft_service.drafter import Drafter
from draft_service.model_drafter import VARIANT, ModelDrafter
from draft_service.ngram_drafter import NgramDrafter
from spearhead.errors import CheckpointError
from spearhead.model.architecture import ModelConfig
from spearhead.model.checkpoint import Checkpoint, load_variants, open_checkpoint
from spearhead.model.loading import LoadedModel, build_engine, compute_device, compute_dtype, load_tokenizer
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
    context_length = config.model.context_length or checkpoint.config.context_length
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
    if VARIANT not in checkpoint.variants:
        raise CheckpointError(
            f"{settings.path} offers {', '.join(checkpoint.variants)}; a draft model runs in full precision, "
            "only the verifier is quantised. Name the full-precision checkpoint"
        )
    tokenizer = load_tokenizer(checkpoint.path, checkpoint.config)
    dtype = compute_dtype(settings)
    variants = load_variants(
        checkpoint, variants=[VARIANT], dtype=dtype, device=compute_device(settings), quantization=None
    )
    model_config, weights = checkpoint.config, variants[VARIANT]
    if config.drafter.kind == "layer_skip":
        kept = kept_layers(model_config.layer_count, config.drafter.layer_share)
        model_config, weights = skip_layers(model_config, weights, kept)
    engine, invariant = build_engine(model_config, {VARIANT: weights}, tokenizer, settings, config.kv_cache)
    model = LoadedModel(
        engine=engine,
        name=settings.display_name,
        revision=checkpoint.revision,
        tokenizer_hash=tokenizer.hash,
        eos_token_ids=checkpoint.config.eos_token_ids,
        dtype=str(dtype).removeprefix("torch."),
        weight_dtype=checkpoint.weight_dtype,
        device=settings.device,
        batch_invariant=invariant,
    )
    return LoadedDrafter(drafter=ModelDrafter(engine), info=model_info(model), model=model)


def kept_layers(layer_count: int, share: float) -> list[int]:
    """Indices of the layers that self-speculation keeps: evenly spread, first and last included."""
    kept = max(2, round(layer_count * share))
    return sorted({round(i * (layer_count - 1) / (kept - 1)) for i in range(kept)})


def skip_layers(
    config: ModelConfig, weights: ModelWeights, kept: Sequence[int]
) -> tuple[ModelConfig, ModelWeights]:
    """The same model without the other layers; tensors are shared."""
    return (
        dataclasses.replace(
            config, layer_count=len(kept), sliding_windows=tuple(config.sliding_windows[i] for i in kept)
        ),
        dataclasses.replace(weights, layers=tuple(weights.layers[i] for i in kept)),
    )
