"""Launches attention: checks, the choice between one program and many a context, and the partial results."""

import torch
from torch import Tensor

from kernels.compensator.layout import GpuCompensator
from kernels.overlap import compiled
from kernels.paged_attention.batch import Attended, AttentionConfig, PagedBatch, default_config
from kernels.paged_attention.kernel import attend_piece, attend_whole, merge_pieces
from kernels.producer.workspace import CodeWorkspace, code_launch, slice_columns, step_columns
from kernels.tensor_checks import FLOATS, power_of_two, require

_LOG2_E = 1.4426950408889634
_NO_WINDOW = 1 << 30
_BUSY_PROGRAMS = 264  # two for each multiprocessor of a Hopper GPU
_PLAIN_COLUMNS = 512  # of a program that merges without codes


def launch(
    query: Tensor,
    cache: Tensor,
    batch: PagedBatch,
    scale: float,
    window: int | None = None,
    compensator: GpuCompensator | None = None,
    workspace: CodeWorkspace | None = None,
    *,
    config: AttentionConfig | None = None,
    whole: bool | None = None,
) -> Attended:
    """The law of :func:`kernels.paged_attention.reference.paged_attention` on the device of ``query``.

    Args:
        query: ``(N, H, D)``, heads of a row contiguous.
        cache: ``(slots, 2, KV, D)`` of the same type.
        batch: Rows and pages.
        scale: Of the scores.
        window: Sliding window, 1 or more; ``None`` = all.
        compensator: Of the product that reads the result; pieces are then merged by a launch of their own, so
            with hundreds of rows leave the codes to :func:`kernels.compensator.gpu.gated_codes`.
        workspace: Needed with a gated compensator.
        config: ``None`` = by the heads that share a key head.
        whole: Whether one program walks the whole context of its rows; ``None`` = when that fills the GPU.
            Changes no bit.

    Raises:
        ValueError: A tensor that the kernel would misread, or numbers that make no sense.
    """
    _check(query, cache, batch, window)
    rows, heads, head_dim = query.shape
    kv_heads = cache.shape[2]
    config = config or default_config(heads // kv_heads)
    tiles = -(-batch.max_rows * (heads // kv_heads) // config.tile_rows)
    pieces = -(-batch.max_length // config.piece_tokens)
    pairs = batch.lengths.shape[0] * kv_heads
    if compensator is not None and whole:
        raise ValueError("whole=True merges pieces in registers, where codes cannot be computed; pass None")
    if whole is None:
        whole = compensator is None and (pieces == 1 or tiles * pairs >= _BUSY_PROGRAMS)
    empty = not rows or not tiles or not pieces or not pairs
    shape = (rows, heads * head_dim)
    make = torch.zeros if whole or empty else torch.empty
    y = make(shape, dtype=query.dtype, device=query.device)
    shared = (query, cache, batch.page_table, batch.row_starts, batch.lengths)
    constants = {
        "H": heads,
        "KV": kv_heads,
        "D": head_dim,
        "BLOCK_D": max(power_of_two(head_dim), 16),
        "PAGE_SIZE": batch.page_size,
        "TILE_ROWS": config.tile_rows,
        "PIECE": config.piece_tokens,
        "BLOCK_KEYS": config.block_keys,
        # From 64 rows Triton takes wgmma; the interpreter knows no assembly.
        "FENCE": query.is_cuda and config.tile_rows >= 64,
        "num_warps": config.num_warps,
        "num_stages": config.num_stages,
    }
    strides = (query.stride(0), batch.page_table.stride(0), scale * _LOG2_E)
    reach = _NO_WINDOW if window is None else window
    if empty or whole:
        if not empty:
            attend_whole[(tiles, 1, pairs)](*shared, y, *strides, reach, **constants)
        return Attended(y=y, codes=_no_codes(y, compensator))
    sums = torch.empty((2, rows, heads, pieces), dtype=torch.float32, device=query.device)
    weighted = torch.empty((rows, heads, pieces, head_dim), dtype=torch.float32, device=query.device)
    parts = (sums[0], sums[1], weighted)
    attend_piece[(tiles, pieces, pairs)](*shared, *parts, *strides, reach, pieces, **constants)
    codes = _merge(parts, batch, y, head_dim, reach, config.piece_tokens, compensator, workspace)
    return Attended(y=y, codes=codes)


def _no_codes(y: Tensor, compensator: GpuCompensator | None) -> Tensor | None:
    if compensator is None:
        return None
    return torch.zeros(1, y.shape[0], compensator.code_width, dtype=torch.float32, device=y.device)


def _merge(
    parts: tuple[Tensor, Tensor, Tensor],
    batch: PagedBatch,
    y: Tensor,
    head_dim: int,
    reach: int,
    piece_tokens: int,
    compensator: GpuCompensator | None,
    workspace: CodeWorkspace | None,
) -> Tensor | None:
    rows, columns = y.shape
    width = step = _PLAIN_COLUMNS
    if compensator is not None:
        width, step = (find(compensator.code_width, columns) for find in (slice_columns, step_columns))
    launched = code_launch(y, columns, width, compensator, workspace)
    merge_pieces[(rows, -(-columns // width))](
        *parts,
        batch.positions,
        y,
        *launched.tensors,
        reach,
        parts[0].shape[2],
        rows,
        HEAD_DIM=head_dim,
        K=columns,
        PIECE=piece_tokens,
        BLOCK_C=step,
        STEPS=width // step,
        ASM=compiled(merge_pieces),
        num_warps=4,
        **launched.constants,
    )
    return launched.output


def _check(query: Tensor, cache: Tensor, batch: PagedBatch, window: int | None) -> None:
    device = query.device
    require("query", query, shape=(None, None, None), dtypes=FLOATS, device=device, rows_contiguous=True)
    rows, heads, head_dim = query.shape
    if rows and query.stride(1) != head_dim:
        raise ValueError(f"query has strides {query.stride()}; the heads of a row must be contiguous")
    require("cache", cache, shape=(None, 2, None, head_dim), dtypes=(query.dtype,), device=device)
    if heads % cache.shape[2]:
        raise ValueError(f"{heads} query heads cannot share {cache.shape[2]} key heads; they must divide")
    sequences = batch.lengths.shape[0]
    require("page_table", batch.page_table, shape=(sequences, None), dtypes=(torch.int32,), device=device)
    require("row_starts", batch.row_starts, shape=(sequences + 1,), dtypes=(torch.int32,), device=device)
    require("lengths", batch.lengths, shape=(sequences,), dtypes=(torch.int32,), device=device)
    require("positions", batch.positions, shape=(rows,), dtypes=(torch.int32, torch.int64), device=device)
    if window is not None and window < 1:
        raise ValueError(f"window is {window}; it must be 1 or more, or None")
    if batch.page_size < 1:
        raise ValueError(f"page_size is {batch.page_size}; it must be 1 or more")
    room = batch.page_table.shape[1] * batch.page_size
    if batch.max_length > room:
        raise ValueError(
            f"max_length is {batch.max_length}; a row of the page table has room for {room} tokens: widen it"
        )
