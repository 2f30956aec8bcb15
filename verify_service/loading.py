"""From the configuration to a verifier: opens checkpoints, picks variants, loads them."""

import logging
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Protocol

import torch

from spearhead import __version__
from spearhead.errors import ConfigError
from spearhead.model.checkpoint import (
    FP16,
    W4,
    W4_EC,
    Checkpoint,
    load_variants,
    offered_variants,
    open_checkpoint,
)
from spearhead.model.checkpoint.layout import scheme_groups
from spearhead.model.device import compute_device, compute_dtypes
from spearhead.model.loading import LoadedModel, load_model
from spearhead.model.parallel import ALONE, Ranks, Shard, plan_shards
from spearhead.model.parallel.agreement import check_same, total
from spearhead.model.quantization import InputGroups, QuantizationScheme
from verify_service.config import VariantSettings, VerifyConfig

_log = logging.getLogger("spearhead.verify")


class Group(Protocol):
    """Processes that share a model; see :mod:`spearhead.model.parallel.group`."""

    def join(self, device: torch.device) -> Ranks:
        """Waits for all of them."""


def load(config: VerifyConfig, group: Group | None = None) -> tuple[LoadedModel, str]:
    """Loads the target model, or one rank's part of it; seconds to minutes.

    Args:
        config: Of this rank.
        group: The other ranks; ``None`` = there are none.

    Returns:
        The model, and the name of the variant that serves first.

    Raises:
        CheckpointError, ConfigError, RankFailure: See the functions that it calls.
    """
    settings, wanted = config.model, config.variants
    scheme = QuantizationScheme.parse(wanted.quantization) if wanted.quantization else None
    with ExitStack() as stack:
        checkpoint = stack.enter_context(closing(open_checkpoint(settings.path, settings.revision or None)))
        full_precision = None
        if wanted.full_precision:
            full_precision = stack.enter_context(closing(open_checkpoint(wanted.full_precision)))
        offered = offered_variants(checkpoint, quantization=scheme, full_precision=full_precision)
        held = offered if wanted.hold == ("auto",) else wanted.hold
        serve = choose_served(wanted, held)
        if scheme is not None and W4 not in held:
            raise ConfigError(
                f"variants.quantization is {wanted.quantization!r}, but variants.hold has no w4; add it, or "
                "leave the scheme out"
            )
        ranks: Ranks = ALONE
        shard: Shard | None = None
        if group is not None:
            ranks, shard = _join(config, group, checkpoint, scheme)
            files = digests(checkpoint, full_precision, held)
            ranks.meet()  # one may read files for minutes longer than another; exchanges do not wait so long
            _check_same(config, ranks, (*files, *held))
        model = load_model(
            checkpoint,
            settings,
            config.kv_cache,
            config=checkpoint.config,
            load_weights=lambda dtype, device: load_variants(
                checkpoint,
                variants=held,
                dtype=dtype,
                device=device,
                quantization=scheme,
                full_precision=full_precision,
                keep_four_bits=wanted.keep_four_bits,
                shard=shard,
            ),
            ranks=ranks,
            shard=shard,
        )
    if shard is not None:
        _tell_share(model, ranks, shard)
    return model, serve


def _join(
    config: VerifyConfig,
    group: Group,
    checkpoint: Checkpoint,
    scheme: QuantizationScheme | None,
) -> tuple[Ranks, Shard]:
    """Meets the other ranks; which part is this one's. A model that cannot be cut is refused before that.

    Args:
        config: Of this rank.
        group: The other ranks.
        checkpoint: The model.
        scheme: Of weights that are rounded at load.
    """
    groups: dict[str, InputGroups] = dict(checkpoint.input_groups)
    if scheme is not None:
        groups |= scheme_groups(checkpoint.config, scheme)
    shards = plan_shards(checkpoint.config, groups, config.parallel.tensor_parallel_size)
    ranks = group.join(compute_device(config.model))
    return ranks, shards[ranks.rank]


def _check_same(config: VerifyConfig, ranks: Ranks, files: Sequence[str]) -> None:
    device = compute_device(config.model)
    settings = replace(config.model, path="", device=device.type, threads=0)
    dtypes = compute_dtypes(config.model, device)
    versions = (__version__, torch.__version__)
    same = (*versions, *files, dtypes, config.variants, config.kv_cache, settings)
    check_same(ranks, repr(same), device)


def digests(checkpoint: Checkpoint, full_precision: Checkpoint | None, held: Sequence[str]) -> list[str]:
    """What tells the files of one rank from those of another, or of another day.

    Args:
        checkpoint: The model.
        full_precision: Named beside it.
        held: Variants.
    """
    corrections = checkpoint.compensators if W4_EC in held else None
    source = full_precision if FP16 in held else None
    return [
        checkpoint.revision,
        "" if corrections is None else corrections.digest,
        "" if source is None else source.revision,
    ]


def _tell_share(model: LoadedModel, ranks: Ranks, shard: Shard) -> None:
    own = model.engine.weight_bytes
    whole = total(ranks, own, torch.device(model.device))
    _log.info(
        "rank %d of %d on %s holds %.1f of %.1f MiB of weights: %d key-value heads, %d channels",
        ranks.rank, ranks.size, model.device, own / 2**20, whole / 2**20, len(shard.kv_heads),
        len(shard.channels),
    )  # fmt: skip


def choose_served(wanted: VariantSettings, held: Sequence[str]) -> str:
    """The variant that serves first.

    Raises:
        ConfigError: ``serve`` is not among the variants held.
    """
    if wanted.serve == "auto":
        return next(name for name in (W4_EC, W4, FP16) if name in held)
    if wanted.serve not in held:
        raise ConfigError(f"variants.serve is {wanted.serve!r}; held are {', '.join(held)}")
    return wanted.serve
