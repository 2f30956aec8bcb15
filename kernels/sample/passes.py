"""The passes before the draw: what the first one found, and the cut of the filters."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.sample.batch import Edits, SamplingBatch
from kernels.sample.bracket import BINS, FIELDS, narrow
from kernels.sample.collect import collect
from kernels.sample.cut import cut
from kernels.sample.scan import lift, merge, scan
from kernels.tensor_checks import power_of_two

BLOCK = 4096
"""Tokens of a program."""
_GROUP = 128  # tokens of which the first pass notes the best
_ROUNDS = 2  # passes that narrow brackets


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What the first pass found, each ``(B,)``; of splits and groups ``(B, n)``; ``search`` is ``(B, 8)``.

    The search also leaves its state there, and the leader if there are filters.
    """

    raw_best_id: Tensor
    margin: Tensor
    normalizer: Tensor
    finite: Tensor
    shaped_best: Tensor
    shaped_best_id: Tensor
    split_best: Tensor
    split_best_id: Tensor
    group_best: Tensor
    search: Tensor
    leader: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """Best score of each split, its token and the mass kept, each ``(B, splits)``."""

    scores: Tensor
    score_ids: Tensor
    mass: Tensor


def empty(shape: tuple[int, ...], device: torch.device, *dtypes: torch.dtype) -> list[Tensor]:
    """Tensors of one shape and several types."""
    return [torch.empty(shape, dtype=dtype, device=device) for dtype in dtypes]


def first_pass(logits: Tensor, batch: SamplingBatch, saved: Tensor) -> Found:
    """Reads the logits once; edits them, and keeps the raw values of edited tokens in ``saved (E,)``."""
    rows, vocabulary = logits.shape
    device, stride, splits, edits = logits.device, logits.stride(0), -(-vocabulary // BLOCK), batch.edits
    parts = empty(
        (rows, splits), device, torch.float32, torch.int32, torch.float32, torch.float32
    )  # best, its token, second, total
    group_best = torch.empty(rows, splits * (BLOCK // _GROUP), dtype=torch.float32, device=device)
    search = torch.empty(rows, FIELDS.value, dtype=torch.int32, device=device)
    leader = torch.empty(rows, dtype=torch.float32, device=device)
    types = (torch.int32, torch.float32, torch.float64, torch.bool, torch.float32, torch.int32)
    outputs = empty((rows,), device, *types)
    if rows:
        if edits is not None:
            lift[(rows,)](logits, edits.row_starts, edits.token_ids, saved, stride)
        sizes = {"V": vocabulary, "GROUP": _GROUP}
        scan[(rows, splits)](logits, *parts, group_best, stride, BLOCK=BLOCK, num_warps=8, **sizes)
        merge[(rows,)](
            logits,
            *parts,
            group_best,
            *(_edit_tensors(edits) if edits is not None else (logits,) * 8),
            saved,
            batch.temperature,
            batch.top_k,
            batch.top_p,
            batch.log_min_p,
            batch.seeds,
            batch.positions,
            search,
            leader,
            *outputs,
            splits,
            stride,
            BLOCK_SPLITS=power_of_two(splits),
            HAS_EDITS=edits is not None,
            FILTERED=batch.filtered,
            SPLIT_GROUPS=BLOCK // _GROUP,
            BLOCK_GROUPS=power_of_two(-(-vocabulary // _GROUP)),
            num_warps=4,
            **sizes,
        )
    raw_best_id, margin, normalizer, finite, shaped_best, shaped_best_id = outputs
    return Found(
        raw_best_id=raw_best_id,
        margin=margin,
        normalizer=normalizer,
        finite=finite,
        shaped_best=shaped_best,
        shaped_best_id=shaped_best_id,
        split_best=parts[0],
        split_best_id=parts[1],
        group_best=group_best,
        search=search,
        leader=leader,
    )


def find_cuts(logits: Tensor, batch: SamplingBatch, found: Found, drawn: Drawn) -> tuple[Tensor, Tensor]:
    """Depth and highest id of the last token kept, each ``(B,)`` int32; draws too where little is kept."""
    rows, vocabulary = logits.shape
    grid = (rows, -(-vocabulary // BLOCK))
    device, stride = logits.device, logits.stride(0)
    bin_counts = torch.empty(*grid, BINS.value, dtype=torch.int32, device=device)
    above_mass, inside_mass = empty(grid, device, torch.int64, torch.int64)
    mass = torch.empty(rows, dtype=torch.int64, device=device)
    depth, highest = empty((rows,), device, torch.int32, torch.int32)
    lists = empty((rows, vocabulary), device, torch.int32, torch.float32)  # token ids, scaled logits
    # Tokens above the bracket, their mass, tokens in it, its ends.
    parts = empty(grid, device, torch.int32, torch.int64, torch.int32, torch.int32, torch.int32)
    sizes = {"V": vocabulary, "BLOCK": BLOCK, "num_warps": 8}
    widths = {"BLOCK_SPLITS": power_of_two(grid[1])}
    for index in range(_ROUNDS):
        narrow[grid](
            logits,
            found.shaped_best,
            batch.temperature,
            batch.top_k,
            batch.top_p,
            found.search,
            bin_counts,
            above_mass,
            inside_mass,
            mass,
            stride,
            ROUND=index,
            **sizes,
            **widths,
        )
    heat = (found.shaped_best, batch.temperature)
    collect[grid](
        logits, found.group_best, *heat, found.search, *lists, *parts, stride, GROUP=_GROUP, **sizes
    )
    cut[(rows,)](
        logits,
        *heat,
        batch.top_k,
        batch.top_p,
        batch.log_min_p,
        batch.seeds,
        batch.positions,
        found.search,
        *lists,
        *parts,
        mass,
        found.split_best,
        found.split_best_id,
        depth,
        highest,
        found.leader,
        drawn.scores,
        drawn.score_ids,
        drawn.mass,
        grid[1],
        stride,
        **sizes,
        **widths,
    )
    return depth, highest


def _edit_tensors(edits: Edits) -> tuple[Tensor, ...]:
    """In the order of the kernel's arguments."""
    return (
        edits.row_starts,
        edits.token_ids,
        edits.bias,
        edits.counts,
        edits.flags,
        edits.repetition,
        edits.presence,
        edits.frequency,
    )
