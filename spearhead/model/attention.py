"""Attention over paged KV, bit-identical for a row whatever else is in the batch.

The reference path in torch operations. A row's result does not depend on the number of query rows, on its
neighbours, or on how the prompt was cut into chunks, because

* the context is cut into pieces of :data:`PIECE_TOKENS`; every sum over keys has this fixed shape, and pieces
  are added pairwise in a tree whose left part does not change when pieces follow (a masked piece adds zero);
* query rows are padded to a multiple of ``row_block``, the smallest block for which the matrix library
  was seen to be row-invariant (:mod:`spearhead.model.invariance`);
* everything runs in float32.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

PIECE_TOKENS = 64

_SCORES = 1 << 24  # scores held at once, 64 MiB
_TILE_ROWS = 32  # a multiple of every row block


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """New tokens of one sequence in a step.

    Attributes:
        pages: All pages of the sequence, the new tokens' included.
        start: Position of the first new token.
        count: New tokens; they are consecutive rows of the batch.
    """

    pages: Sequence[int]
    start: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionGroup:
    """Segments that share one padded shape and are computed in one go: B of them, R rows each.

    Attributes:
        rows: ``(B * Q,)`` int64, batch row of each query; padding repeats the last.
        pages: ``(B * pages,)`` int64; a shorter segment repeats its own first page.
        hidden: Keys that a row must not see, for each sliding window in use: ``(B, 1, R, L)`` bool.
        valid: ``(n,)`` int64, the entries of ``rows`` that are not padding; ``None`` = all.
        valid_rows: ``(n,)`` int64, their batch rows.
        batch: B.
        queries: Q, queries a segment.
        padded_rows: R, a multiple of the row block and at least Q * (H / KV).
    """

    rows: Tensor
    pages: Tensor
    hidden: dict[int | None, Tensor]
    valid: Tensor | None
    valid_rows: Tensor
    batch: int
    queries: int
    padded_rows: int


def build_groups(
    segments: Sequence[Segment],
    *,
    page_size: int,
    heads_per_kv_head: int,
    row_block: int,
    windows: frozenset[int | None],
    device: torch.device,
) -> list[AttentionGroup]:
    """Sorts segments into groups of equal padded shape; done once a step, shared by all layers."""
    by_shape: dict[tuple[int, int], list[tuple[Segment, int]]] = {}
    row = 0
    for segment in segments:
        padded_rows = -(-segment.count * heads_per_kv_head // row_block) * row_block
        pages = -(-(segment.start + segment.count) // page_size)
        shape = (padded_rows, 1 << (pages - 1).bit_length())
        by_shape.setdefault(shape, []).append((segment, row))
        row += segment.count
    return [
        _build_group(members, padded_rows, page_size, heads_per_kv_head, windows, device)
        for (padded_rows, _), members in by_shape.items()
    ]


def _build_group(
    members: list[tuple[Segment, int]],
    padded_rows: int,
    page_size: int,
    heads_per_kv_head: int,
    windows: frozenset[int | None],
    device: torch.device,
) -> AttentionGroup:
    queries = padded_rows // heads_per_kv_head
    granule = max(PIECE_TOKENS, page_size)
    length = max(-(-(segment.start + segment.count) // granule) for segment, _ in members) * granule
    page_count = length // page_size
    rows: list[int] = []
    pages: list[int] = []
    positions: list[list[int]] = []
    valid: list[int] = []
    for index, (segment, first_row) in enumerate(members):
        last = segment.count - 1
        rows += [first_row + min(query, last) for query in range(queries)]
        used = segment.pages[:page_count]
        pages += [*used, *[used[0]] * (page_count - len(used))]
        places = [
            segment.start + min(query, last) for query in range(queries) for _ in range(heads_per_kv_head)
        ]
        positions.append(places + [segment.start] * (padded_rows - len(places)))
        valid += range(index * queries, index * queries + segment.count)
    row_tensor = torch.tensor(rows, device=device)
    complete = len(valid) == len(rows)
    valid_tensor = torch.tensor(valid, device=device)
    limits = torch.tensor(positions, device=device)[:, None, :, None]  # (B, 1, R, 1)
    keys = torch.arange(length, device=device)
    return AttentionGroup(
        rows=row_tensor,
        pages=torch.tensor(pages, device=device),
        hidden={window: _hidden(limits, keys, window) for window in windows},
        valid=None if complete else valid_tensor,
        valid_rows=row_tensor if complete else row_tensor[valid_tensor],
        batch=len(members),
        queries=queries,
        padded_rows=padded_rows,
    )


def _hidden(limits: Tensor, keys: Tensor, window: int | None) -> Tensor:
    hidden = keys > limits
    if window is not None:
        hidden |= keys <= limits - window
    return hidden


def paged_attention(
    query: Tensor, cache: Tensor, group: AttentionGroup, window: int | None, page_size: int
) -> Tensor:
    """Attention of one group.

    Slots that a row must not see have no influence as long as they hold finite numbers, which the engine sees
    to: it clears pages before it hands them out.

    Args:
        query: float32 ``(N, H, D)`` of all rows of the batch, scaled already: weights are powers of two.
        cache: ``(slots, 2, KV, D)``, keys and values of one layer, new tokens included.
        group: Which rows and pages.
        window: The layer's sliding window.
        page_size: Tokens a page.

    Returns:
        ``(n, H * D)`` float32 for ``group.valid_rows``.
    """
    kv_heads, head_dim = cache.shape[2:]
    batch, rows, pairs = group.batch, group.padded_rows, group.batch * kv_heads
    queries = _by_kv_head(query.index_select(0, group.rows), group, kv_heads)
    used = queries.shape[1]
    if rows > used:
        queries = torch.nn.functional.pad(queries, (0, 0, 0, rows - used))
    keys, values = _gather(cache, group, page_size)
    keys, values = keys.view(pairs, -1, head_dim), values.view(pairs, -1, head_dim)
    # Rows do not depend on each other, so tiles of them bound the memory and change no bit.
    tile = max(_SCORES // (pairs * keys.shape[1]) // _TILE_ROWS, 1) * _TILE_ROWS
    tiles = [
        _attend(
            queries[:, start : start + tile], keys, values, group.hidden[window][:, :, start : start + tile]
        )
        for start in range(0, rows, tile)
    ]
    output = tiles[0] if len(tiles) == 1 else torch.cat(tiles, dim=1)
    by_query = output[:, :used].view(batch, kv_heads, group.queries, -1)
    flat = by_query.transpose(1, 2).reshape(batch * group.queries, -1)
    return flat if group.valid is None else flat[group.valid]


def _by_kv_head(queries: Tensor, group: AttentionGroup, kv_heads: int) -> Tensor:
    """(B Q, H, D) to (B KV, Q H / KV, D)."""
    head_dim = queries.shape[-1]
    split = queries.view(group.batch, group.queries, kv_heads, -1, head_dim)
    return split.transpose(1, 2).reshape(group.batch * kv_heads, -1, head_dim)


def _attend(queries: Tensor, keys: Tensor, values: Tensor, hidden: Tensor) -> Tensor:
    """Softmax attention: (B KV, R, D) queries over (B KV, L, D) keys and values."""
    scores = torch.bmm(queries, keys.transpose(1, 2))  # (B KV, R, L)
    scores.view(hidden.shape[0], -1, *hidden.shape[2:]).masked_fill_(hidden, float("-inf"))
    weights = scores.sub_(scores.amax(-1, keepdim=True)).exp2_()
    return _weighted_sum(weights, values)


def _gather(cache: Tensor, group: AttentionGroup, page_size: int) -> Tensor:
    """The group's pages as float32 keys and values ``(2, B, KV, L, D)``."""
    kv_heads, head_dim = cache.shape[2:]
    pages = cache.view(-1, page_size * 2 * kv_heads * head_dim).index_select(0, group.pages)
    parts = pages.view(group.batch, -1, 2, kv_heads, head_dim).permute(2, 0, 3, 1, 4)
    return parts.to(torch.float32, memory_format=torch.contiguous_format).contiguous()


def _weighted_sum(weights: Tensor, values: Tensor) -> Tensor:
    """Sum of values (B KV, L, D) by weights (B KV, R, L), divided by the sum of weights: (B KV, R, D)."""
    pairs, rows, length = weights.shape
    pieces = length // PIECE_TOKENS
    if pieces == 1:
        return torch.bmm(weights, values).div_(weights.sum(-1, keepdim=True))
    split = (
        weights.view(pairs, rows, pieces, PIECE_TOKENS).transpose(1, 2).contiguous()
    )  # (B KV, P, R, piece)
    partial = torch.bmm(
        split.view(pairs * pieces, rows, PIECE_TOKENS), values.view(pairs * pieces, PIECE_TOKENS, -1)
    ).view(pairs, pieces, rows, -1)
    return _tree_sum(partial).div_(_tree_sum(split.sum(-1, keepdim=True)))


def _tree_sum(parts: Tensor) -> Tensor:
    """Sum over dimension 1 by adding neighbours; parts that follow change no sum of those before."""
    while parts.shape[1] > 1:
        paired = parts[:, 0:-1:2] + parts[:, 1::2]
        parts = torch.cat((paired, parts[:, -1:]), dim=1) if parts.shape[1] % 2 else paired
    return parts[:, 0]
