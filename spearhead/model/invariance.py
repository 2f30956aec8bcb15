"""Finds, at start-up, the row padding under which this machine's matrix library is batch-invariant.

A library picks another kernel, and with it another order of additions, for one row than for many. Within
one kernel a row's result does not depend on the others. So row counts are padded to the smallest block for
which all multiples were seen to be bit-equal on the model's own shapes, and the whole decoder is then
checked once more. Nothing is assumed about the library; a machine where no block works is reported.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from kernels.w4a16 import GpuWeight, PackedWeight
from spearhead.model.architecture import ModelConfig
from spearhead.model.attention import Segment, build_groups, paged_attention
from spearhead.model.decoder import MAX_ROWS, Decoder, RowBlocks, multiply
from spearhead.model.forward import ForwardPass
from spearhead.model.weights import LinearWeights, ModelWeights

_LINEAR_BLOCKS = (1, 2, 4, 8, 16, 32)
_ATTENTION_BLOCKS = (4, 8, 16, 32)
_PROBE_RESULTS = 1 << 18
_MOST_WINDOWS = 512
_PROBE_TOKENS = 40
_PROBE_PROMPTS = 3


def make_invariant(decoder: Decoder, variants: Sequence[ModelWeights]) -> bool:
    """Sets the decoder's row blocks to the smallest under which every variant is batch-invariant.

    Call it before anything is cached: it writes to the first pages of the storage.

    Returns:
        False when no block does it; the decoder then keeps the blocks it had.
    """
    before = decoder.row_blocks
    config, dtype = decoder.config, decoder.storage.layers[0].dtype
    agree = decoder.ranks.agree  # blocks are the same on all ranks, and so are the steps of this proof
    attention = next((b for b in _ATTENTION_BLOCKS if agree(_attention_invariant(config, dtype, b))), None)
    if attention is None:
        return False
    matrices = _distinct_matrices(variants)
    for block in _LINEAR_BLOCKS:
        if agree(all(_linear_invariant(matrix, block) for matrix in matrices)):
            decoder.row_blocks = RowBlocks(linear=block, attention=attention)
            if all(agree(decoder_invariant(decoder, weights)) for weights in variants):
                return True
    decoder.row_blocks = before
    return False


def probe_page_count(page_size: int) -> int:
    """Pages that the proof writes to, from page 0 on."""
    return _PROBE_PROMPTS * -(-_PROBE_TOKENS // page_size)


@torch.inference_mode()
def decoder_invariant(decoder: ForwardPass, weights: ModelWeights) -> bool:
    """Runs one prompt whole, in chunks, token by token and beside others; true when all bits agree."""
    size = decoder.storage.page_size
    pages_each = -(-_PROBE_TOKENS // size)
    generator = torch.Generator().manual_seed(0)
    limit = decoder.config.vocab_size
    prompts = torch.randint(limit, (_PROBE_PROMPTS, _PROBE_TOKENS), generator=generator).tolist()
    pages = [range(i * pages_each, (i + 1) * pages_each) for i in range(len(prompts))]

    def run(parts: Sequence[tuple[int, int, int]], row: int) -> Tensor:
        """Logits of one row of a step made of (prompt, start, end) parts."""
        segments = [Segment(pages=pages[p], start=start, count=end - start) for p, start, end in parts]
        tokens = [token for p, start, end in parts for token in prompts[p][start:end]]
        return decoder.forward(weights, segments, tokens, [row]).logits

    count = min(_PROBE_TOKENS, decoder.context_length)
    whole = run([(0, 0, count)], count - 1)
    same = True  # no early return: ranks go through the same steps whatever they find
    for cuts in ((0, 17, count), (0, count - 7, count - 6, count - 1, count)):
        for start, end in pairwise(cuts):
            result = run([(0, start, end)], end - start - 1)
        same = same and torch.equal(whole, result)
    run([(1, 0, count)], 0)
    beside = run([(1, count - 5, count), (0, count - 1, count), (2, 0, count)], 5)
    return same and torch.equal(whole, beside)


def _distinct_matrices(variants: Iterable[ModelWeights]) -> list[Tensor | PackedWeight]:
    """One matrix of each form, shape and dtype that the decoder multiplies by."""
    matrices: dict[tuple[int, torch.Size, torch.dtype], Tensor | PackedWeight] = {}
    for weights in variants:
        linears = [weights.head]
        for layer in weights.layers:
            linears += [layer.qkv, layer.output, layer.gate_up, layer.down]
        for layer_weights in linears:
            # Compensators are computed in float32 whatever the compute dtype is.
            assert not isinstance(layer_weights.weight, GpuWeight), "weights for a GPU on the processor"
            for matrix in (layer_weights.weight, *_compensator_matrices(layer_weights)):
                group_size = 0 if isinstance(matrix, Tensor) else matrix.group_size
                matrices.setdefault((group_size, matrix.shape, matrix.dtype), matrix)
    return list(matrices.values())


def _compensator_matrices(weights: LinearWeights) -> Iterator[Tensor]:
    after = () if weights.after_sum is None else weights.after_sum.compensators
    for placed in (*weights.compensators, *after):
        gate = () if placed.gate is None else (placed.gate.w1, placed.gate.w2)
        yield from (matrix.float() for matrix in (placed.a, placed.b, *gate))


@torch.inference_mode()
def _linear_invariant(matrix: Tensor | PackedWeight, block: int) -> bool:
    generator = torch.Generator().manual_seed(0)
    # Two kernels can differ in as few as one result in 20,000, so the smallest count, for which libraries
    # have special kernels, is tried until enough results were compared.
    tried = min(max(_PROBE_RESULTS // matrix.shape[0] // block, 4), _MOST_WINDOWS) * block
    rows = torch.randn(max(tried, MAX_ROWS), matrix.shape[1], generator=generator).to(matrix.dtype)
    expected = torch.cat([multiply(part, matrix) for part in torch.split(rows, MAX_ROWS)])
    windows = [(0, count) for count in RowBlocks(linear=block).buckets]
    windows += [(start, start + block) for start in range(0, tried, block)]
    return all(
        torch.equal(multiply(rows[start:end].clone(), matrix), expected[start:end]) for start, end in windows
    )


@torch.inference_mode()
def _attention_invariant(config: ModelConfig, dtype: torch.dtype, block: int) -> bool:
    page_size, length = 16, 600
    pages = range(-(-length // page_size))
    generator = torch.Generator().manual_seed(0)
    shape = (len(pages) * page_size, 2, config.kv_head_count, config.head_dim)
    cache = torch.randn(shape, generator=generator).to(dtype)
    query = torch.randn(length, config.head_count, config.head_dim, generator=generator)

    def run(parts: Sequence[tuple[int, int]]) -> Tensor:
        """Results of rows [start, end) of the query, one sequence a part."""
        groups = build_groups(
            [Segment(pages=pages, start=start, count=end - start) for start, end in parts],
            page_size=page_size,
            heads_per_kv_head=config.head_count // config.kv_head_count,
            row_block=block,
            windows=frozenset({None}),
            device=cache.device,
        )
        rows = torch.cat([query[start:end] for start, end in parts])
        result = torch.empty(len(rows), config.head_count * config.head_dim)
        for group in groups:
            result[group.valid_rows] = paged_attention(rows, cache, group, None, page_size)
        return result

    whole = run([(0, length)])
    decode = [(p, p + 1) for p in (0, 5, 255, 256, 300, length - 1)]
    runs = [(0, 3), (10, 15), (254, 258), (300, 309), (500, 564), (length - 2, length)]
    return all(
        torch.equal(run(parts), torch.cat([whole[start:end] for start, end in parts]))
        for parts in (decode, runs, [*decode[:1], *runs], decode[3:4], runs[1:2])
    )
