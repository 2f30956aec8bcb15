"""Paged attention against the formula, and its independence of batch and chunking."""

import math

import pytest
import torch

from spearhead.model.attention import PIECE_TOKENS, Segment, build_groups, paged_attention

HEADS, KV_HEADS, HEAD_DIM, PAGE = 6, 2, 16, 16


def cache(tokens, seed=0):
    generator = torch.Generator().manual_seed(seed)
    slots = -(-tokens // PIECE_TOKENS) * PIECE_TOKENS
    return torch.randn(slots, 2, KV_HEADS, HEAD_DIM, generator=generator)


def run(query, kv, segments, window=None, row_block=4):
    groups = build_groups(
        segments,
        page_size=PAGE,
        heads_per_kv_head=HEADS // KV_HEADS,
        row_block=row_block,
        windows=frozenset({window}),
        device=query.device,
    )
    output = torch.full((len(query), HEADS * HEAD_DIM), float("nan"))
    for group in groups:
        # The decoder scales queries for powers of two; the formula has powers of e.
        output[group.valid_rows] = paged_attention(query * math.log2(math.e), kv, group, window, PAGE)
    return output


def formula(query, kv, position, window=None):
    """Attention of one row of query (H, D) at a position, in float64."""
    first = 0 if window is None else max(0, position - window + 1)
    result = []
    for head in range(HEADS):
        k = kv[first : position + 1, 0, head // (HEADS // KV_HEADS)].double()
        v = kv[first : position + 1, 1, head // (HEADS // KV_HEADS)].double()
        weights = torch.softmax(k @ query[head].double(), dim=0)
        result.append(weights @ v)
    return torch.cat(result)


@pytest.mark.parametrize("window", [None, 7])
@pytest.mark.parametrize("length", [1, 5, 63, 64, 65, 257, 600])
def test_it_equals_the_formula(length, window):
    kv = cache(length)
    query = torch.randn(length, HEADS, HEAD_DIM, generator=torch.Generator().manual_seed(1)) / 4
    pages = range(-(-length // PAGE))
    output = run(query, kv, [Segment(pages=pages, start=0, count=length)], window)
    for position in {0, length // 2, length - 1}:
        expected = formula(query[position], kv, position, window)
        error = (output[position].double() - expected).norm() / expected.norm()
        assert error < 1e-5, "float32 sums of a few hundred terms"


def test_pages_may_lie_anywhere():
    kv = cache(64)
    query = torch.randn(64, HEADS, HEAD_DIM)
    straight = run(query, kv, [Segment(pages=[0, 1, 2, 3], start=0, count=64)])
    order = [3, 0, 2, 1]
    moved = torch.zeros_like(kv)
    for logical, physical in enumerate(order):
        moved[physical * PAGE : (physical + 1) * PAGE] = kv[logical * PAGE : (logical + 1) * PAGE]
    assert torch.equal(run(query, moved, [Segment(pages=order, start=0, count=64)]), straight)


def test_what_lies_beyond_the_sequence_has_no_influence():
    kv = cache(100)
    query = torch.randn(100, HEADS, HEAD_DIM)
    segment = [Segment(pages=range(7), start=0, count=100)]
    before = run(query, kv, segment)
    kv[100:] = 1e4
    assert torch.equal(run(query, kv, segment), before)


def test_mixed_groups_fill_every_row():
    kv = cache(300)
    counts = [1, 5, 64, 1, 2]
    segments = [Segment(pages=range(19), start=300 - count, count=count) for count in counts]
    query = torch.randn(sum(counts), HEADS, HEAD_DIM)
    output = run(query, kv, segments)
    assert not output.isnan().any()
    row = 0
    for segment in segments:
        alone = run(query[row : row + segment.count], kv, [segment])
        assert torch.equal(output[row : row + segment.count], alone)
        row += segment.count


def test_scores_of_any_size_stay_finite():
    kv = cache(40)
    query = torch.full((1, HEADS, HEAD_DIM), 1e4)
    output = run(query, kv, [Segment(pages=range(3), start=39, count=1)])
    assert all(math.isfinite(value) for value in output.flatten().tolist())
