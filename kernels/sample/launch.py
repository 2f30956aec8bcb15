"""Launches sampling: checks, scratch memory, and the order of the passes."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.sample.alternatives import best_of_row, best_of_split
from kernels.sample.batch import Edits, RowLogprobs, Samples, SamplingBatch
from kernels.sample.draw import draw, finish
from kernels.sample.filters import bound, collect, select, weigh
from kernels.sample.scan import BLOCK_EDITS, lift, merge, scan
from kernels.tensor_checks import power_of_two, require

MAX_VOCABULARY = 1 << 18
MAX_ALTERNATIVES = 32
_BLOCK = 4096  # tokens of a program
_GROUP = 128  # tokens of which the first pass notes the best


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scan:
    """What the first pass found, each ``(B,)``; ``group_best`` is ``(B, groups)``."""

    raw_best_id: Tensor
    margin: Tensor
    normalizer: Tensor
    finite: Tensor
    shaped_best: Tensor
    shaped_best_id: Tensor
    group_best: Tensor


def launch(logits: Tensor, batch: SamplingBatch) -> Samples:
    """The law of :func:`kernels.sample.reference.sample` on the device of ``logits``.

    Args:
        logits: float32 ``(B, V)``, rows contiguous, V up to 2**18; edited in place and restored.
        batch: Laws of the rows.

    Raises:
        ValueError: A tensor that the kernels would misread.
    """
    _check(logits, batch)
    rows, vocabulary = logits.shape
    device = logits.device
    saved = torch.empty(len(batch.edits.token_ids) if batch.edits else 0, dtype=torch.float32, device=device)
    found = _first_pass(logits, batch.edits, saved)
    depth, highest = _cuts(logits, batch, found)
    splits = -(-vocabulary // _BLOCK)
    scores, score_ids, mass = (
        torch.empty(rows, splits, dtype=dtype, device=device)
        for dtype in (torch.float32, torch.int32, torch.int64)
    )
    token_ids = torch.empty(rows, dtype=torch.int64, device=device)
    probability, logprob = (torch.empty(rows, dtype=torch.float32, device=device) for _ in range(2))
    if rows:
        stride = logits.stride(0)
        draw[(rows, splits)](
            logits,
            found.shaped_best,
            batch.temperature,
            batch.seeds,
            batch.positions,
            depth,
            highest,
            scores,
            score_ids,
            mass,
            stride,
            V=vocabulary,
            BLOCK=_BLOCK,
            num_warps=8,
        )
        finish[(rows,)](
            logits,
            batch.edits.row_starts if batch.edits else logits,
            batch.edits.token_ids if batch.edits else logits,
            saved,
            scores,
            score_ids,
            mass,
            batch.temperature,
            found.finite,
            found.raw_best_id,
            found.shaped_best,
            found.shaped_best_id,
            found.normalizer,
            token_ids,
            probability,
            logprob,
            splits,
            stride,
            V=vocabulary,
            BLOCK_SPLITS=power_of_two(splits),
            BLOCK_EDITS=BLOCK_EDITS,
            HAS_EDITS=batch.edits is not None,
            num_warps=4,
        )
    return Samples(
        token_ids=token_ids,
        margin=found.margin,
        probability=probability,
        finite=found.finite,
        logprobs=_logprobs(logits, token_ids, logprob, found.normalizer, batch.alternatives),
    )


def _first_pass(logits: Tensor, edits: Edits | None, saved: Tensor) -> _Scan:
    rows, vocabulary = logits.shape
    device, stride, splits = logits.device, logits.stride(0), -(-vocabulary // _BLOCK)
    best, second, total = (torch.empty(rows, splits, dtype=torch.float32, device=device) for _ in range(3))
    best_id, broken = (torch.empty(rows, splits, dtype=torch.int32, device=device) for _ in range(2))
    group_best = torch.empty(rows, splits * (_BLOCK // _GROUP), dtype=torch.float32, device=device)
    types = (torch.int32, torch.float32, torch.float64, torch.bool, torch.float32, torch.int32)
    outputs = [torch.empty(rows, dtype=dtype, device=device) for dtype in types]
    if rows:
        if edits is not None:
            lift[(rows,)](logits, edits.row_starts, edits.token_ids, saved, stride)
        parts = (best, best_id, second, total, broken)
        scan[(rows, splits)](
            logits, *parts, group_best, stride, V=vocabulary, BLOCK=_BLOCK, GROUP=_GROUP, num_warps=8
        )
        merge[(rows,)](
            logits,
            *parts,
            *(_edit_tensors(edits) if edits is not None else (logits,) * 8),
            saved,
            *outputs,
            splits,
            stride,
            V=vocabulary,
            BLOCK_SPLITS=power_of_two(splits),
            HAS_EDITS=edits is not None,
            num_warps=4,
        )
    raw_best_id, margin, normalizer, finite, shaped_best, shaped_best_id = outputs
    return _Scan(
        raw_best_id=raw_best_id,
        margin=margin,
        normalizer=normalizer,
        finite=finite,
        shaped_best=shaped_best,
        shaped_best_id=shaped_best_id,
        group_best=group_best,
    )


def _cuts(logits: Tensor, batch: SamplingBatch, found: _Scan) -> tuple[Tensor, Tensor]:
    """Depth and highest id of the last token kept, each ``(B,)`` int32."""
    rows, vocabulary = logits.shape
    device, stride = logits.device, logits.stride(0)
    if not batch.filtered:
        depth = torch.full((rows,), torch.finfo(torch.float32).max, device=device).view(torch.int32)
        return depth, torch.full_like(depth, vocabulary)
    # One allocation, so that one kernel clears both.
    cleared = torch.zeros(rows, 3, dtype=torch.int32, device=device).view(-1)
    mass, sizes = cleared[: 2 * rows].view(torch.int64), cleared[2 * rows :]
    list_ids = torch.empty(rows, vocabulary, dtype=torch.int32, device=device)
    list_values = torch.empty(rows, vocabulary, dtype=torch.float32, device=device)
    last_depth, depth, highest = (torch.empty(rows, dtype=torch.int32, device=device) for _ in range(3))
    law = (batch.temperature, batch.top_k, batch.top_p, batch.log_min_p)
    if rows:
        grid = (rows, -(-vocabulary // _BLOCK))
        constants = {"V": vocabulary, "num_warps": 8}
        lists = (list_ids, list_values)
        source = (logits, found.shaped_best, *law)
        weigh[grid](*source, mass, stride, BLOCK=_BLOCK, **constants)
        bound[(rows,)](
            found.group_best,
            *source[1:],
            mass,
            *lists,
            last_depth,
            -(-vocabulary // _GROUP),
            found.group_best.shape[1],
            **constants,
        )
        collect[grid](*source, last_depth, *lists, sizes, stride, BLOCK=_BLOCK, **constants)
        select[(rows,)](*law, mass, *lists, sizes, depth, highest, **constants)
    return depth, highest


def _logprobs(
    logits: Tensor, token_ids: Tensor, logprob: Tensor, normalizer: Tensor, count: int | None
) -> RowLogprobs | None:
    if count is None:
        return None
    rows, vocabulary = logits.shape
    device, splits = logits.device, -(-vocabulary // _BLOCK)
    values = torch.empty(rows, splits, count, dtype=torch.float32, device=device)
    ids = torch.empty(rows, splits, count, dtype=torch.int32, device=device)
    ranks = torch.ones(rows, dtype=torch.int32, device=device)
    top_ids = torch.empty(rows, count, dtype=torch.int32, device=device)
    top_logprobs = torch.empty(rows, count, dtype=torch.float32, device=device)
    if rows:
        constants = {"V": vocabulary, "COUNT": count, "num_warps": 8}
        best_of_split[(rows, splits)](
            logits, token_ids, values, ids, ranks, logits.stride(0), BLOCK=_BLOCK, **constants
        )
        if count:
            width = splits * count
            best_of_row[(rows,)](
                values, ids, normalizer, top_ids, top_logprobs, width, BLOCK=power_of_two(width), **constants
            )
    return RowLogprobs(logprob=logprob, rank=ranks, top_token_ids=top_ids, top_logprobs=top_logprobs)


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


def _check(logits: Tensor, batch: SamplingBatch) -> None:
    device = logits.device
    require(
        "logits", logits, shape=(None, None), dtypes=(torch.float32,), device=device, rows_contiguous=True
    )
    rows, vocabulary = logits.shape
    if not 0 < vocabulary <= MAX_VOCABULARY:
        raise ValueError(f"logits have {vocabulary} tokens a row; 1 to {MAX_VOCABULARY} are supported")
    expected = {
        "temperature": (batch.temperature, torch.float32),
        "top_k": (batch.top_k, torch.int32),
        "top_p": (batch.top_p, torch.float64),
        "log_min_p": (batch.log_min_p, torch.float32),
        "seeds": (batch.seeds, torch.int64),
        "positions": (batch.positions, torch.int64),
    }
    for name, (tensor, dtype) in expected.items():
        require(name, tensor, shape=(rows,), dtypes=(dtype,), device=device)
    if batch.alternatives is not None and not 0 <= batch.alternatives <= min(MAX_ALTERNATIVES, vocabulary):
        raise ValueError(
            f"alternatives is {batch.alternatives}; "
            f"it must be 0 to {min(MAX_ALTERNATIVES, vocabulary)}, or None"
        )
    if batch.edits is not None:
        _check_edits(batch.edits, rows, device)


def _check_edits(edits: Edits, rows: int, device: torch.device) -> None:
    count = edits.token_ids.shape[0]
    expected = {
        "edits.row_starts": (edits.row_starts, torch.int32, rows + 1),
        "edits.token_ids": (edits.token_ids, torch.int32, count),
        "edits.bias": (edits.bias, torch.float32, count),
        "edits.counts": (edits.counts, torch.float32, count),
        "edits.flags": (edits.flags, torch.int32, count),
        "edits.repetition": (edits.repetition, torch.float32, rows),
        "edits.presence": (edits.presence, torch.float32, rows),
        "edits.frequency": (edits.frequency, torch.float32, rows),
    }
    for name, (tensor, dtype, size) in expected.items():
        require(name, tensor, shape=(size,), dtypes=(dtype,), device=device)
