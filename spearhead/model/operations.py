"""The operations of a step one by one, as the profiler calls and times them; here on the processor."""

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import torch

from spearhead.model.attention import Segment, build_groups, paged_attention
from spearhead.model.decoder import Decoder, linear
from spearhead.model.kv_cache import KvStorage
from spearhead.model.weights import LinearWeights

Call = Callable[[], object]

_MIN_RUNS = 5
_MAX_RUNS = 50
_BUDGET_S = 0.15


class Operations(Protocol):
    """What a device's path offers to be measured."""

    def products(self, parts: Sequence[LinearWeights], rows: int) -> list[Call]:
        """One call a matrix: its product with ``rows`` random rows, compensators included."""
        ...

    def attentions(self, rows: int, context: int, sequences: int) -> list[Call]:
        """One call a layer: ``rows`` new tokens after ``context`` cached ones in each of some sequences."""
        ...

    def median_us(self, calls: Sequence[Call]) -> float:
        """Median time of one call, microseconds."""
        ...


class CpuOperations:
    """Operations of the processor's decoder.

    Args:
        decoder: Its storage is read, never written.
    """

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder

    def products(self, parts: Sequence[LinearWeights], rows: int) -> list[Call]:
        """See :class:`Operations`; the input is padded as a step's is."""
        dtype = self._decoder.storage.layers[0].dtype
        x = torch.randn(self._decoder.row_blocks.padded(rows), parts[0].weight.shape[1]).to(dtype)
        return [partial(linear, x, part) for part in parts]

    def attentions(self, rows: int, context: int, sequences: int) -> list[Call]:
        """See :class:`Operations`."""
        config, storage = self._decoder.config, self._decoder.storage
        query = torch.randn(rows * sequences, config.head_count, config.head_dim)
        groups = build_groups(
            segments_apart(storage, rows, context, sequences),
            page_size=storage.page_size,
            heads_per_kv_head=config.head_count // config.kv_head_count,
            row_block=self._decoder.row_blocks.attention,
            windows=frozenset({None}),
            device=query.device,
        )

        def attend(layer: int) -> None:
            for group in groups:
                paged_attention(query, storage.layers[layer], group, None, storage.page_size)

        return [partial(attend, layer) for layer in range(config.layer_count)]

    def median_us(self, calls: Sequence[Call]) -> float:
        """See :class:`Operations`: several rounds through ``calls``; the first round warms up."""
        for call in calls[:2]:
            call()
        times: list[int] = []
        deadline = time.perf_counter() + _BUDGET_S
        while len(times) < _MIN_RUNS or (time.perf_counter() < deadline and len(times) < _MAX_RUNS):
            call = calls[len(times) % len(calls)]
            started = time.perf_counter_ns()
            call()
            times.append(time.perf_counter_ns() - started)
        return statistics.median(times) / 1e3


def segments_apart(storage: KvStorage, rows: int, context: int, sequences: int) -> list[Segment]:
    """Sequences on pages of their own where the pool allows, so that none warms the cache for the next."""
    each = -(-(context + rows) // storage.page_size)
    return [
        Segment(
            pages=[(index * each + page) % storage.page_count for page in range(each)],
            start=context,
            count=rows,
        )
        for index in range(sequences)
    ]
