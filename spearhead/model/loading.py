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
from spearhead.model.device import check_vocabulary, compute_device, compute_dtypes
from spearhead.model.drawing import Draw, draw_each
from spearhead.model.engine import SequenceEngine
from spearhead.model.forward import ForwardPass
from spearhead.model.gpu.drawing import compile_draws, draw_together
from spearhead.model.gpu.loading import capture_steps, gpu_decoder, prove_invariance
from spearhead.model.gpu.weights import prepared
from spearhead.model.invariance import make_invariant, probe_page_count
from spearhead.model.kv_cache import KvStorage, PageTable
from spearhead.model.parallel import ALONE, Ranks, Shard
from spearhead.model.settings import KvCacheSettings, ModelSettings
from spearhead.model.weights import ModelWeights, packed
from spearhead.tokenizer import Tokenizer

_log = logging.getLogger("spearhead.model")


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
        draw: Draws tokens on the device.
        rank_count: Ranks that share every layer; sizes in bytes are those of this one.
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
    draw: Draw = draw_each
    rank_count: int = 1


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
    ranks: Ranks = ALONE,
    shard: Shard | None = None,
) -> LoadedModel:
    """Loads weights, allocates the cache, builds the decoder and proves batch invariance.

    All ranks of a model call it with the same arguments but their own part, and go through it together.

    Args:
        checkpoint: Where name, revision and tokenizer come from.
        settings: Section ``[model]``.
        kv_settings: Section ``[kv_cache]``.
        config: Shape to run; layers may have been left out. Of the whole model, whatever this rank's part is.
        load_weights: Makes the variants for a compute type and a device, of this rank's part.
        ranks: Who computes the other parts.
        shard: This rank's part; ``None`` = all of it.

    Raises:
        ConfigError: The cache is too small, or results depend on the batch and that is not allowed.
        CheckpointError: The weights cannot be used.
    """
    device, tokenizer = compute_device(settings), load_tokenizer(checkpoint.path, config)
    build = _build_on_gpu if device.type == "cuda" else _build_on_cpu
    sizes = _Sizes(
        config=config if shard is None else shard.shape(config),
        settings=settings,
        kv_settings=kv_settings,
        tokenizer=tokenizer,
        ranks=ranks,
        most_kv_heads=config.kv_head_count if shard is None else shard.most_kv_heads,
    )
    for dtype in compute_dtypes(settings, device):
        engine, invariant = build(sizes, _read(load_weights, dtype, device, ranks), dtype, device)
        if invariant:
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
        device=str(device),
        batch_invariant=invariant,
        draw=draw_together if device.type == "cuda" else draw_each,
        rank_count=ranks.size,
    )


def _return_freed_memory() -> None:
    """Loading leaves gigabytes of freed temporaries with glibc's allocator, which keeps them unless asked."""
    if sys.platform == "linux" and platform.libc_ver()[0] == "glibc":
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def _read(
    load_weights: Callable[[torch.dtype, torch.device], Mapping[str, ModelWeights]],
    dtype: torch.dtype,
    device: torch.device,
    ranks: Ranks,
) -> Mapping[str, ModelWeights]:
    weights = load_weights(dtype, device)
    ranks.meet()  # one may read for minutes longer than another; exchanges do not wait so long
    return weights


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sizes:
    """What decides how large an engine's parts are."""

    config: ModelConfig
    settings: ModelSettings
    kv_settings: KvCacheSettings
    tokenizer: Tokenizer
    ranks: Ranks
    most_kv_heads: int

    @property
    def vocab_size(self) -> int:
        return min(self.config.vocab_size, self.tokenizer.vocab_size)

    def storage(self, dtype: torch.dtype, device: torch.device) -> KvStorage:
        page_count = _page_count(self.config, self.kv_settings, dtype, self.most_kv_heads)
        return KvStorage(self.config, page_count, self.kv_settings.page_size, dtype, device)

    def context_length(self, storage: KvStorage) -> int:
        return min(context_limit(self.config, self.settings), storage.page_count * storage.page_size)

    def engine(self, decoder: ForwardPass, variants: Mapping[str, ModelWeights]) -> SequenceEngine:
        storage = decoder.storage
        return SequenceEngine(
            decoder,
            PageTable(storage.page_count, storage.page_size),
            variants,
            vocab_size=self.vocab_size,
            context_length=self.context_length(storage),
            max_rows=self.settings.max_compute_tokens,
        )


def _build_on_cpu(
    sizes: _Sizes, variants: Mapping[str, ModelWeights], dtype: torch.dtype, device: torch.device
) -> tuple[SequenceEngine, bool]:
    """An engine on the processor, and whether batch invariance was proved."""
    if packs(dtype):
        variants = packed(variants)
    else:
        _log.warning("no packed kernel for %s here; steps will be slower", dtype)
    storage = sizes.storage(dtype, device)
    decoder = Decoder(
        sizes.config,
        storage,
        context_length=sizes.context_length(storage),
        row_blocks=RowBlocks(),
        device=device,
        ranks=sizes.ranks,
    )
    invariant = make_invariant(decoder, list(variants.values()))
    if invariant:
        _log.info("batch invariance proved in %s with %s", dtype, decoder.row_blocks)
    return sizes.engine(decoder, variants), invariant


def _build_on_gpu(
    sizes: _Sizes, variants: Mapping[str, ModelWeights], dtype: torch.dtype, device: torch.device
) -> tuple[SequenceEngine, bool]:
    """An engine on a CUDA device, every kernel compiled, and whether batch invariance was proved."""
    check_vocabulary(sizes.vocab_size, device)
    variants = prepared(variants, dtype)
    storage = sizes.storage(dtype, device)
    decoder = gpu_decoder(
        sizes.config, storage, variants, context_length=sizes.context_length(storage), ranks=sizes.ranks
    )
    if sizes.settings.cuda_graphs:
        capture_steps(decoder, variants)
    invariant = prove_invariance(decoder, variants)
    compile_draws(sizes.vocab_size, device)
    if invariant:
        _log.info("batch invariance proved in %s on %s", dtype, torch.cuda.get_device_name(device))
    return sizes.engine(decoder, variants), invariant


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


def _page_count(config: ModelConfig, settings: KvCacheSettings, dtype: torch.dtype, kv_heads: int) -> int:
    """The same on all ranks, since one page table serves them: by the most heads that any of them has."""
    token_bytes = 2 * config.layer_count * kv_heads * config.head_dim * dtype.itemsize
    count = settings.page_count or settings.memory_mib * 2**20 // (token_bytes * settings.page_size)
    needed = probe_page_count(settings.page_size)
    if count < needed:
        raise ConfigError(
            f"the KV cache has {count} pages of {settings.page_size} tokens ({token_bytes} bytes a token); "
            f"it needs at least {needed}: raise kv_cache.memory_mib or kv_cache.page_count"
        )
    return count
