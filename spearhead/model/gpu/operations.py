"""The operations of a step one by one, on a GPU, for the profiler."""

import statistics
import time
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from spearhead.model.gpu.decoder import GpuDecoder
from spearhead.model.operations import Call, segments_apart
from spearhead.model.weights import LinearWeights

_WARM_UPS = 3
_MIN_ROUNDS = 5
_MAX_ROUNDS = 50
_BUDGET_S = 0.05


class GpuOperations:
    """Operations of the GPU's decoder; see :class:`spearhead.model.operations.Operations`.

    Args:
        decoder: Its storage is read, never written.
    """

    def __init__(self, decoder: GpuDecoder) -> None:
        self._decoder = decoder
        self._dtype = decoder.storage.layers[0].dtype

    def products(self, parts: Sequence[LinearWeights], rows: int) -> list[Call]:
        """See the protocol; codes of compensators are computed by a launch of their own."""
        x = self._random(rows, parts[0].weight.shape[1])
        return [partial(self._decoder.products.multiply, x, part) for part in parts]

    def attentions(self, rows: int, context: int, sequences: int) -> list[Call]:
        """One call a layer, without the cache write."""
        decoder = self._decoder
        config = decoder.config
        query = self._random(rows * sequences, config.head_count, config.head_dim)
        step = decoder.step_of(segments_apart(decoder.storage, rows, context, sequences))
        return [partial(decoder.attend, layer, query, step) for layer in range(config.layer_count)]

    def median_us(self, calls: Sequence[Call]) -> float:
        """Launches overlap, so rounds are timed: all calls, then one wait, divided by their number."""
        rounds: list[float] = []
        deadline = time.perf_counter() + _BUDGET_S
        while len(rounds) < _WARM_UPS + _MIN_ROUNDS or (
            time.perf_counter() < deadline and len(rounds) < _MAX_ROUNDS
        ):
            started = time.perf_counter_ns()
            for call in calls:
                call()
            torch.cuda.synchronize(self._decoder.device)
            rounds.append((time.perf_counter_ns() - started) / len(calls))
        return statistics.median(rounds[_WARM_UPS:]) / 1e3

    def _random(self, *shape: int) -> Tensor:
        return torch.randn(*shape, device=self._decoder.device, dtype=self._dtype)
