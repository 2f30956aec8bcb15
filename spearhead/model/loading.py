"""From settings to a warm engine: load, size the cache, prove batch invariance."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from spearhead.errors import CheckpointError, ConfigError
from spearhead.model.architecture import ModelConfig
from spearhead.model.decoder import Decoder, RowBlocks
from spearhead.model.engine import SequenceEngine
from spearhead.model.invariance import make_invariant, probe_page_count
from spearhead.model.kv_cache import KvStorage, PageTable
from spearhead.model.settings import KvCacheSettings, ModelSettings
from spearhead.model.weights import ModelWeights
from spearhead.tokenizer import Tokenizer

_log = logging.getLogger("spearhead.model")

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model that is ready to serve.

    Attributes:
        engine: Sequences over the decoder.
        name: For people.
        revision: Digest of the checkpoint.
        tokenizer_hash: Digest of the tokenizer.
        eos_token_ids: Tokens that end a sequence.
        dtype: Compute type, such as ``bfloat16``.
        weight_dtype: Type of the weights in the checkpoint.
        device: Such as ``cpu``.
        batch_invariant: Whether that was proved here.
    """

    engine: SequenceEngine
    name: str
    revision: str
    tokenizer_hash: str
    eos_token_ids: tuple[int, ...]
    dtype: str
    weight_dtype: str
    device: str
    batch_invariant: bool


def compute_dtype(settings: ModelSettings) -> torch.dtype:
    """Resolves ``dtype``: bfloat16 needs hardware support to be faster than float32."""
    if settings.dtype != "auto":
        return _DTYPES[settings.dtype]
    if torch.device(settings.device).type != "cpu":
        return torch.bfloat16
    return torch.bfloat16 if torch.cpu._is_avx512_bf16_supported() else torch.float32


def compute_device(settings: ModelSettings) -> torch.device:
    """Resolves ``device`` and sets the number of threads.

    Raises:
        ConfigError: The device does not exist here, or has no kernels yet.
    """
    try:
        device = torch.device(settings.device)
    except RuntimeError as error:
        raise ConfigError(f"model.device is {settings.device!r}, which is no device: {error}") from error
    if device.type != "cpu":
        raise ConfigError(
            f"model.device is {settings.device!r}; this version serves on cpu only, set model.device = 'cpu'"
        )
    if settings.threads:
        torch.set_num_threads(settings.threads)
    return device


def build_engine(
    config: ModelConfig,
    variants: Mapping[str, ModelWeights],
    tokenizer: Tokenizer,
    settings: ModelSettings,
    kv_settings: KvCacheSettings,
) -> tuple[SequenceEngine, bool]:
    """Allocates the cache, builds the decoder, proves batch invariance.

    Returns:
        The engine, and whether it is batch-invariant.

    Raises:
        ConfigError: The cache is too small, or results depend on the batch and that is not allowed.
    """
    device, dtype = compute_device(settings), compute_dtype(settings)
    context_length = min(config.context_length, settings.context_length or config.context_length)
    page_count = _page_count(config, kv_settings, dtype)
    storage = KvStorage(config, page_count, kv_settings.page_size, dtype, device)
    decoder = Decoder(config, storage, context_length=context_length, row_blocks=RowBlocks(), device=device)
    invariant = make_invariant(decoder, list(variants.values()))
    if invariant:
        _log.info("batch invariance proved with %s", decoder.row_blocks)
    elif not settings.allow_batch_variance:
        raise ConfigError(
            f"results in {dtype} depend on the batch on this machine, so that output could change with load; "
            "use model.dtype = 'float32', or accept it with model.allow_batch_variance = true"
        )
    engine = SequenceEngine(
        decoder,
        PageTable(page_count, kv_settings.page_size),
        variants,
        vocab_size=min(config.vocab_size, tokenizer.vocab_size),
        context_length=min(context_length, page_count * kv_settings.page_size),
    )
    return engine, invariant


def load_tokenizer(path: Path, config: ModelConfig) -> Tokenizer:
    """The checkpoint's tokenizer.

    Raises:
        CheckpointError: It does not know the model's end-of-sequence tokens.
    """
    tokenizer = Tokenizer.load(path)
    unknown = [token for token in config.eos_token_ids if token >= tokenizer.vocab_size]
    if unknown:
        raise CheckpointError(
            f"{path}: end-of-sequence tokens {unknown} are beyond the tokenizer's vocabulary of "
            f"{tokenizer.vocab_size}; the tokenizer does not belong to this model"
        )
    return tokenizer


def _page_count(config: ModelConfig, settings: KvCacheSettings, dtype: torch.dtype) -> int:
    token_bytes = 2 * config.layer_count * config.kv_head_count * config.head_dim * dtype.itemsize
    count = settings.page_count or settings.memory_mib * 2**20 // (token_bytes * settings.page_size)
    needed = probe_page_count(settings.page_size)
    if count < needed:
        raise ConfigError(
            f"the KV cache has {count} pages of {settings.page_size} tokens ({token_bytes} bytes a token); "
            f"it needs at least {needed}: raise kv_cache.memory_mib or kv_cache.page_count"
        )
    return count
