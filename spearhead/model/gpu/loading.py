"""A decoder on a GPU, warm: every kernel that a step may take is compiled before the first step."""

import logging
import time
from collections.abc import Mapping

import torch

from kernels.w4a16 import Plans
from spearhead.errors import ConfigError
from spearhead.model.architecture import ModelConfig
from spearhead.model.attention import Segment
from spearhead.model.gpu.decoder import GpuDecoder
from spearhead.model.gpu.graph_shapes import graph_shapes
from spearhead.model.gpu.graphs import CudaCapture, StepGraphs
from spearhead.model.gpu.products import GpuLinears
from spearhead.model.gpu.step import MAX_ROWS
from spearhead.model.invariance import decoder_invariant
from spearhead.model.kv_cache import KvStorage
from spearhead.model.parallel import ALONE, Ranks
from spearhead.model.weights import ModelWeights

_log = logging.getLogger("spearhead.model")

_ROW_COUNTS = (1, 5, 16, 17, 18, 33, 65, 129, 300, MAX_ROWS)
"""One of each tile of the 4-bit product and of each way to attend."""


def gpu_decoder(
    config: ModelConfig,
    storage: KvStorage,
    variants: Mapping[str, ModelWeights],
    *,
    context_length: int,
    ranks: Ranks = ALONE,
) -> GpuDecoder:
    """Builds a decoder for variants that are prepared for the GPU.

    Raises:
        ConfigError: The plans for this GPU cannot be read.
    """
    device = storage.layers[0].device
    try:
        found = torch.cuda.get_device_properties(device)
        plans = Plans(found.name, found.multi_processor_count)
    except ValueError as error:
        raise ConfigError(f"the plans of the 4-bit product cannot be used: {error}") from error
    linears = GpuLinears(variants.values(), plans, rows=MAX_ROWS, device=device)
    return GpuDecoder(config, storage, linears, context_length=context_length, ranks=ranks)


def capture_steps(decoder: GpuDecoder, variants: Mapping[str, ModelWeights]) -> None:
    """Captures the small steps of every variant as CUDA graphs; before the proof, which then covers them.

    Raises:
        RuntimeError: A capture failed, or there is no memory for the graphs.
    """
    started, before = time.monotonic(), torch.cuda.memory_reserved(decoder.device)
    with torch.cuda.device(decoder.device):
        graphs = StepGraphs(
            decoder.compute,
            graph_shapes(decoder.context_length),
            page_size=decoder.storage.page_size,
            vocab_size=next(iter(variants.values())).head.weight.shape[0],
            device=decoder.device,
            capture=CudaCapture(),
        )
        for weights in variants.values():
            graphs.add(weights)
    decoder.graphs = graphs
    taken = (torch.cuda.memory_reserved(decoder.device) - before) >> 20
    _log.info("captured %d steps in %.1f s, %d MiB", len(graphs), time.monotonic() - started, taken)


def warm_up(decoder: GpuDecoder, weights: ModelWeights) -> None:
    """Computes steps of many sizes on pages that nothing uses yet, so that kernels are compiled."""
    size = decoder.storage.page_size
    room = min(decoder.storage.page_count * size, decoder.context_length)
    for count in sorted({min(count, room) for count in _ROW_COUNTS}):
        segment = Segment(pages=range(-(-count // size)), start=0, count=count)
        decoder.forward(weights, [segment], [0] * count, [count - 1])
    torch.cuda.synchronize(decoder.device)


def prove_invariance(decoder: GpuDecoder, variants: Mapping[str, ModelWeights]) -> bool:
    """Warms up, then checks that no variant's results depend on the batch.

    Call it before anything is cached: it writes to the first pages of the storage.
    """
    proved = True
    for name, weights in variants.items():
        warm_up(decoder, weights)
        good = decoder.ranks.agree(decoder_invariant(decoder, weights))
        proved = proved and good
        if not good:
            _log.warning("results of %s depend on the batch on this GPU", name)
    return proved
