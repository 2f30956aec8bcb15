"""Measures what a step is made of: projections, attention, the head, and everything else.

The scheduler's latency table adds these up, so each entry says how often one forward pass runs it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from spearhead.model.attention import Segment
from spearhead.model.decoder import Decoder
from spearhead.model.engine import SequenceEngine
from spearhead.model.gpu.decoder import GpuDecoder
from spearhead.model.gpu.operations import GpuOperations
from spearhead.model.kv_cache import CachedSequence
from spearhead.model.operations import CpuOperations, Operations
from spearhead.model.parallel.lockstep import LeadingDecoder
from spearhead.model.weights import LinearWeights, ModelWeights

_DEFAULT_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_DEFAULT_CONTEXTS = (128, 512, 1024, 2048, 4096, 8192)
_SEQUENCES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """One measured operation; see ``KernelLatency`` in the contract.

    Attributes:
        op: ``linear``, ``attention``, ``head`` or ``overhead``.
        n: Output features.
        k: Input features.
        rank: Sum of the compensators' ranks.
        rows: Rows in the batch; for attention, new rows of one sequence.
        context: Tokens of a sequence before its new rows (attention).
        calls_per_forward: Times that one forward pass runs it.
        median_us: Of one call.
    """

    op: str
    n: int = 0
    k: int = 0
    rank: int = 0
    rows: int
    context: int = 0
    calls_per_forward: int
    median_us: float


@torch.inference_mode()
def profile_engine(
    engine: SequenceEngine,
    variant: str,
    rows: Sequence[int] = (),
    contexts: Sequence[int] = (),
    *,
    on_progress: Callable[[], None] = lambda: None,
) -> list[Latency]:
    """Measures one variant; call it when no sequence is being computed.

    Args:
        engine: Its decoder and weights are used; live sequences are not touched.
        variant: Weights to measure.
        rows: Row counts; empty = a default list.
        contexts: Context lengths in tokens; empty = a default list up to the engine's limit.
        on_progress: Called after each measurement.
    """
    weights, operations = engine.variants[variant], _operations(engine)
    row_counts = sorted(set(rows or _DEFAULT_ROWS))
    longest = engine.context_length - row_counts[-1]
    lengths = sorted({c for c in contexts or _DEFAULT_CONTEXTS if c <= longest} or {max(longest, 1)})
    entries: list[Latency] = []
    for source in (
        _linears(weights, row_counts, operations),
        _heads(weights, row_counts, operations),
        _attentions(weights, sorted({1, *row_counts}), lengths, operations),
        _overheads(engine, variant, entries, row_counts, operations),
    ):
        for entry in source:
            entries.append(entry)
            on_progress()
    return entries


def _operations(engine: SequenceEngine) -> Operations:
    decoder = engine.decoder.own if isinstance(engine.decoder, LeadingDecoder) else engine.decoder
    if isinstance(decoder, GpuDecoder):
        return GpuOperations(decoder)
    assert isinstance(decoder, Decoder), "there are two decoders"
    return CpuOperations(decoder)


def _linears(weights: ModelWeights, row_counts: Sequence[int], operations: Operations) -> Iterator[Latency]:
    kinds: dict[tuple[int, int, int], list[LinearWeights]] = {}
    for layer in weights.layers:
        for part in (layer.qkv, layer.output, layer.gate_up, layer.down):
            kinds.setdefault((*part.weight.shape, part.rank), []).append(part)
    for (n, k, rank), parts in kinds.items():
        for rows in row_counts:
            # Every layer's own weights in turn, so that no cache holds what a real step would have to read.
            median_us = operations.median_us(operations.products(parts, rows))
            yield Latency(
                op="linear", n=n, k=k, rank=rank, rows=rows, calls_per_forward=len(parts), median_us=median_us
            )


def _heads(weights: ModelWeights, row_counts: Sequence[int], operations: Operations) -> Iterator[Latency]:
    n, k = weights.head.weight.shape
    for rows in row_counts:
        median_us = operations.median_us(operations.products([weights.head], rows))
        yield Latency(op="head", n=n, k=k, rows=rows, calls_per_forward=1, median_us=median_us)


def _attentions(
    weights: ModelWeights, row_counts: Sequence[int], contexts: Sequence[int], operations: Operations
) -> Iterator[Latency]:
    """The marginal time of one more sequence in a step; what a step pays once is part of the overhead."""
    layers = len(weights.layers)
    for context in contexts:
        for rows in row_counts:
            one, several = (
                operations.median_us(operations.attentions(rows, context, n)) for n in (1, _SEQUENCES)
            )
            marginal_us = max((several - one) / (_SEQUENCES - 1), 0.0)
            yield Latency(
                op="attention", rows=rows, context=context, calls_per_forward=layers, median_us=marginal_us
            )


def _overheads(
    engine: SequenceEngine,
    variant: str,
    entries: Sequence[Latency],
    row_counts: Sequence[int],
    operations: Operations,
) -> Iterator[Latency]:
    """What a whole forward pass takes beyond the sum of its measured parts, at a short context."""
    shortest = min(entry.context for entry in entries if entry.op == "attention")
    attention_us = sum(
        entry.median_us * entry.calls_per_forward
        for entry in entries
        if entry.op == "attention" and (entry.rows, entry.context) == (1, shortest)
    )
    measured = tuple(entries)
    for rows in row_counts:
        if rows > engine.pages.free_page_count:
            continue
        parts_us = attention_us * rows + sum(
            entry.median_us * entry.calls_per_forward
            for entry in measured
            if entry.op != "attention" and entry.rows == rows
        )
        overhead_us = max(_whole_pass_us(engine, variant, rows, operations) - parts_us, 0.0)
        yield Latency(op="overhead", rows=rows, calls_per_forward=1, median_us=overhead_us)


def _whole_pass_us(engine: SequenceEngine, variant: str, rows: int, operations: Operations) -> float:
    """A forward pass over one token of each of ``rows`` sequences, on pages of their own."""
    sequences = [CachedSequence(variant=variant) for _ in range(rows)]
    try:
        for sequence in sequences:
            engine.pages.extend(sequence, [0])
        segments = [Segment(pages=sequence.pages, start=0, count=1) for sequence in sequences]
        weights = engine.variants[variant]
        return operations.median_us(
            [lambda: engine.decoder.forward(weights, segments, [0] * rows, range(rows))]
        )
    finally:
        for sequence in sequences:
            engine.pages.release(sequence)
