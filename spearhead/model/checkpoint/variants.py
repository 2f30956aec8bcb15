"""From an open checkpoint to the tensors of its variants, which share all that is the same."""

import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from math import prod

import torch
from torch import Tensor

from spearhead.errors import CheckpointError
from spearhead.model.checkpoint.four_bits import LIMITS, multiplies
from spearhead.model.checkpoint.layout import check_groups, expected_shapes, linear_modules
from spearhead.model.checkpoint.loader import (
    Matrices,
    QuantizedSource,
    SharedTensors,
    Source,
    TensorLoader,
    assemble_layers,
    finite,
)
from spearhead.model.checkpoint.opening import open_checkpoint
from spearhead.model.checkpoint.origin import check_origin
from spearhead.model.checkpoint.source import Checkpoint
from spearhead.model.parallel import Cut, Shard
from spearhead.model.quantization import QuantizationScheme, QuantizedWeight, dequantize, rtn
from spearhead.model.weights import LinearWeights, ModelWeights

_log = logging.getLogger("spearhead.model")

FP16, W4, W4_EC = "fp16", "w4", "w4+ec"


def offered_variants(
    checkpoint: Checkpoint,
    *,
    quantization: QuantizationScheme | None = None,
    full_precision: Checkpoint | None = None,
) -> tuple[str, ...]:
    """The variants that :func:`load_variants` can load with the same arguments, the preferred one first."""
    offered = list(checkpoint.variants)
    if quantization is not None and not checkpoint.quantization:
        offered.append(W4)
    if full_precision is not None and FP16 not in offered:
        offered.append(FP16)
    return tuple(sorted(offered, key=(W4_EC, W4, FP16).index))


def load_variants(
    checkpoint: Checkpoint,
    *,
    variants: Sequence[str],
    dtype: torch.dtype,
    device: torch.device,
    quantization: QuantizationScheme | None = None,
    full_precision: Checkpoint | None = None,
    keep_four_bits: bool = False,
    shard: Shard | None = None,
) -> dict[str, ModelWeights]:
    """Loads variants of one model; embedding and head are held once, norms and biases once a checkpoint.

    With full-precision weights at hand embedding and head are theirs, unless the quantised checkpoint has
    other ones. Embedding and head are never quantised here.

    Args:
        checkpoint: Full precision, or quantised.
        variants: Of :func:`offered_variants`.
        dtype: Compute type.
        device: Where the tensors go.
        quantization: How ``w4`` is made from a full-precision checkpoint.
        full_precision: ``fp16`` beside a quantised checkpoint; without it, the source that the
            checkpoint names.
        keep_four_bits: Hold ``w4`` and ``w4+ec`` as codes and scales where that can be multiplied here, else
            and without it dequantised.
        shard: Keep one rank's part of each layer; ``None`` = all of it. What is rounded here is rounded whole
            and cut then, so that all parts together are the weights of one rank.

    Raises:
        CheckpointError: A variant that cannot be had, weights that do not fit the scheme, NaN or
            infinite weights.
    """
    _check_arguments(checkpoint, variants, quantization, full_precision)
    with ExitStack() as stack:
        base = full_precision or checkpoint
        if FP16 in variants and base.quantization:
            base = stack.enter_context(closing(_open_source(checkpoint)))
        if base is not checkpoint:
            check_origin(checkpoint, base, "Name its source, quantise it again, or serve w4 alone")
        cuts = {} if shard is None else shard.cuts(checkpoint.config)
        loader = TensorLoader(base=base, dtype=dtype, device=device, cuts=cuts)
        shared = {FP16: loader.shared()}
        needed = {FP16 if variant == FP16 else W4 for variant in variants}
        matrices: dict[str, Sequence[Matrices]] = {}
        if FP16 in needed:
            matrices[FP16] = loader.linears(base.tensor)
        if W4 in needed:
            shared[W4] = (
                shared[FP16]
                if base is checkpoint
                else replace(loader, base=checkpoint).shared_beside(shared[FP16], base)
            )
            matrices[W4] = _w4_matrices(loader, checkpoint, quantization, keep_four_bits)
        return {
            variant: _assemble(
                variant,
                shared=shared[FP16 if variant == FP16 else W4],
                matrices=matrices[FP16 if variant == FP16 else W4],
                checkpoint=checkpoint,
                base=base,
                quantization=quantization,
                shard=shard,
                cuts=cuts,
            )
            for variant in variants
        }


def _check_arguments(
    checkpoint: Checkpoint,
    variants: Sequence[str],
    quantization: QuantizationScheme | None,
    full_precision: Checkpoint | None,
) -> None:
    if full_precision is not None and full_precision.quantization:
        raise CheckpointError(f"{full_precision.path} was given as full precision, but is quantised")
    if quantization is not None and checkpoint.quantization:
        raise CheckpointError(
            f"{checkpoint.path} is quantised already ({checkpoint.quantization}), so that {quantization} "
            "would have no effect; leave the scheme out, or name the full-precision checkpoint"
        )
    offered = offered_variants(checkpoint, quantization=quantization, full_precision=full_precision)
    for variant in variants:
        if variant not in offered:
            raise CheckpointError(
                f"variant {variant!r} cannot be loaded from {checkpoint.path}; "
                f"it offers {', '.join(offered)}. {_remedy(variant)}"
            )
    if W4 in variants and quantization is not None and not checkpoint.quantization:
        check_groups(checkpoint.config, quantization)


def _remedy(variant: str) -> str:
    if variant == FP16:
        return "Name the full-precision checkpoint that it was made from as well"
    if variant == W4:
        return "Name a quantization, such as group32, or give a quantised checkpoint"
    return "Give a quantised checkpoint with compensators"


def _open_source(checkpoint: Checkpoint) -> Checkpoint:
    source = checkpoint.full_precision_source
    assert source is not None, "fp16 is only offered when there is a source"
    return open_checkpoint(source.location)


def _w4_source(checkpoint: Checkpoint, scheme: QuantizationScheme | None) -> Source:
    if checkpoint.quantization or scheme is None:
        return checkpoint.tensor
    scale_dtype: torch.dtype = getattr(torch, checkpoint.weight_dtype)

    def quantized(name: str) -> Tensor:
        return dequantize(*rtn(finite(checkpoint.tensor(name), name), scheme, scale_dtype))

    return quantized


def _w4_codes(checkpoint: Checkpoint, scheme: QuantizationScheme | None) -> QuantizedSource:
    if checkpoint.quantization or scheme is None:
        return checkpoint.quantized_weight
    scale_dtype: torch.dtype = getattr(torch, checkpoint.weight_dtype)

    def quantized(module: str) -> QuantizedWeight:
        name = f"{module}.weight"
        codes, scales = rtn(finite(checkpoint.tensor(name), name), scheme, scale_dtype)
        return QuantizedWeight(bits=4, codes=codes, scales=scales)

    return quantized


def _w4_matrices(
    loader: TensorLoader, checkpoint: Checkpoint, scheme: QuantizationScheme | None, keep_four_bits: bool
) -> Sequence[Matrices]:
    source = _w4_source(checkpoint, scheme)
    if not keep_four_bits:
        return loader.linears(source)
    if not multiplies(loader.dtype, loader.device):
        _log.warning("no 4-bit product in %s here; w4 is held dequantised", loader.dtype)
        return loader.linears(source)
    layers = loader.quantized_linears(source, _w4_codes(checkpoint, scheme))
    held = [matrix for layer in layers for matrix in layer.values()]
    dense = sum(isinstance(matrix, Tensor) for matrix in held)
    if dense:
        _log.warning(
            "%d of %d projections of w4 are held dequantised: %s",
            dense,
            len(held),
            LIMITS[loader.device.type],
        )
    return layers


def _assemble(
    variant: str,
    *,
    shared: SharedTensors,
    matrices: Sequence[Matrices],
    checkpoint: Checkpoint,
    base: Checkpoint,
    quantization: QuantizationScheme | None,
    shard: Shard | None,
    cuts: Mapping[str, Cut],
) -> ModelWeights:
    config = checkpoint.config if shard is None else shard.shape(checkpoint.config)
    compensators = checkpoint.compensators if variant == W4_EC else None
    weights = ModelWeights(
        variant=variant,
        embedding=shared.embedding,
        layers=assemble_layers(config, shared, matrices, compensators, cuts),
        final_norm=shared.final_norm,
        head=LinearWeights(weight=shared.head),
        stored_bytes=base.stored_bytes,
    )
    if variant == FP16:
        return weights
    if not checkpoint.quantization and quantization is not None:
        stored = quantized_bytes(checkpoint, quantization)
        return replace(weights, quantization=quantization.description, stored_bytes=stored)
    return replace(
        weights,
        quantization=checkpoint.quantization,
        stored_bytes=checkpoint.stored_bytes + (compensators.stored_bytes if compensators else 0),
        compensator_digest=compensators.digest if compensators else "",
    )


def quantized_bytes(checkpoint: Checkpoint, scheme: QuantizationScheme) -> int:
    """Bytes that a full-precision checkpoint would take once quantised by a scheme."""
    item_bytes = torch.finfo(getattr(torch, checkpoint.weight_dtype)).bits // 8
    modules = linear_modules(checkpoint.config)
    total = 0
    for name, shape in expected_shapes(checkpoint.config).items():
        if name.removesuffix(".weight") not in modules:
            total += prod(shape) * item_bytes
            continue
        rows, columns = shape
        groups = columns // scheme.group_size if scheme.group_size else 1
        total += rows * (-(-columns // 8) * 4 + groups * item_bytes)
    return total
