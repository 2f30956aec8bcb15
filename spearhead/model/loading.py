"""From settings to a warm engine: load, size the cache, prove batch invariance."""

import ctypes
import logging
import platform
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from kernels.linear import packs
from spearhead.errors import CheckpointError, ConfigError
from spearhead.model.architecture import ModelConfig
from spearhead.model.checkpoint import Checkpoint
from spearhead.model.decoder import Decoder, RowBlocks
from spearhead.model.engine import SequenceEngine
from spearhead.model.invariance import make_invariant, probe_page_count
from spearhead.model.kv_cache import KvStorage, PageTable
from spearhead.model.settings import KvCacheSettings, ModelSettings
from spearhead.model.weights import ModelWeights, packed
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


def compute_dtypes(settings: ModelSettings) -> tuple[torch.dtype, ...]:
    """The compute types to try, the preferred one first.

    ``auto`` takes bfloat16 where the processor multiplies it in hardware, and float32 where not, or where
    bfloat16 turns out to depend on the batch.
    """
    if settings.dtype != "auto":
        return (_DTYPES[settings.dtype],)
    fast = (torch.bfloat16,) if torch.cpu._is_avx512_bf16_supported() else ()
    return (*fast, torch.float32)


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


def context_limit(config: ModelConfig, settings: ModelSettings) -> int:
    """The longest sequence to serve, in tokens.

    Raises:
        ConfigError: More is asked for than the model can.
    """
    if settings.context_length > config.context_length:
        raise ConfigError(
            f"model.context_length is {settings.context_length}, but {settings.display_name} was made for "
            f"{config.context_length} tokens; ask for at most that, or 0 for all of it"
        )
    return settings.context_length or config.context_length


def load_model(
    checkpoint: Checkpoint,
    settings: ModelSettings,
    kv_settings: KvCacheSettings,
    *,
    config: ModelConfig,
    load_weights: Callable[[torch.dtype, torch.device], Mapping[str, ModelWeights]],
) -> LoadedModel:
    """Loads weights, allocates the cache, builds the decoder and proves batch invariance.

    Args:
        checkpoint: Where name, revision and tokenizer come from.
        settings: Section ``[model]``.
        kv_settings: Section ``[kv_cache]``.
        config: Shape to run; layers may have been left out.
        load_weights: Makes the variants for a compute type and a device.

    Raises:
        ConfigError: The cache is too small, or results depend on the batch and that is not allowed.
        CheckpointError: The weights cannot be used.
    """
    device, tokenizer = compute_device(settings), load_tokenizer(checkpoint.path, config)
    for dtype in compute_dtypes(settings):
        variants = load_weights(dtype, device)
        if packs(dtype):
            variants = packed(variants)
        else:
            _log.warning("no packed kernel for %s here; steps will be slower", dtype)
        engine = _build_engine(config, variants, tokenizer, settings, kv_settings, dtype)
        invariant = make_invariant(engine.decoder, list(variants.values()))
        if invariant:
            _log.info("batch invariance proved in %s with %s", dtype, engine.decoder.row_blocks)
            break
        _log.warning("results in %s depend on the batch on this machine", dtype)
    _return_freed_memory()
    if not invariant and not settings.allow_batch_variance:
        raise ConfigError(
            f"results in {dtype} depend on the batch on this machine, so that output could change with load; "
            "use model.dtype = 'float32', or accept it with model.allow_batch_variance = true"
        )
    return LoadedModel(
        engine=engine,
        name=settings.display_name,
        revision=checkpoint.revision,
        tokenizer_hash=tokenizer.hash,
        eos_token_ids=config.eos_token_ids,
        dtype=str(dtype).removeprefix("torch."),
        weight_dtype=checkpoint.weight_dtype,
        device=settings.device,
        batch_invariant=invariant,
    )


def _return_freed_memory() -> None:
    """Loading leaves gigabytes of freed temporaries with glibc's allocator, which keeps them unless asked."""
    if sys.platform == "linux" and platform.libc_ver()[0] == "glibc":
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def _build_engine(
    config: ModelConfig,
    variants: Mapping[str, ModelWeights],
    tokenizer: Tokenizer,
    settings: ModelSettings,
    kv_settings: KvCacheSettings,
    dtype: torch.dtype,
) -> SequenceEngine:
    device, page_size = torch.device(settings.device), kv_settings.page_size
    page_count = _page_count(config, kv_settings, dtype)
    context_length = min(context_limit(config, settings), page_count * page_size)
    storage = KvStorage(config, page_count, page_size, dtype, device)
    decoder = Decoder(config, storage, context_length=context_length, row_blocks=RowBlocks(), device=device)
    return SequenceEngine(
        decoder,
        PageTable(page_count, page_size),
        variants,
        vocab_size=min(config.vocab_size, tokenizer.vocab_size),
        context_length=context_length,
        max_rows=settings.max_compute_tokens,
    )


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
