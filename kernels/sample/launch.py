"""Launches sampling: scratch memory and the order of the passes.

Without filters: (lift the edits,) scan, merge, draw, finish. With filters the cut is searched for between
merge and draw: two passes that narrow its bracket, one that collects the tokens in it, and the search among
these, which draws too where they are few. Rows that do not need a pass leave it at once.
"""

import torch
from torch import Tensor

from kernels.sample.alternatives import best_of_row, best_of_split
from kernels.sample.batch import RowLogprobs, Samples, SamplingBatch
from kernels.sample.checks import check
from kernels.sample.draw import draw, finish
from kernels.sample.passes import BLOCK, Drawn, Found, empty, find_cuts, first_pass
from kernels.tensor_checks import power_of_two


def launch(logits: Tensor, batch: SamplingBatch) -> Samples:
    """The law of :func:`kernels.sample.reference.sample` on the device of ``logits``.

    Args:
        logits: float32 ``(B, V)``, rows contiguous, V up to 2**18; edited in place and restored.
        batch: Laws of the rows.

    Raises:
        ValueError: A tensor that the kernels would misread.
    """
    check(logits, batch)
    rows, vocabulary = logits.shape
    device = logits.device
    saved = torch.empty(len(batch.edits.token_ids) if batch.edits else 0, dtype=torch.float32, device=device)
    splits = -(-vocabulary // BLOCK)
    scores, score_ids, mass = empty((rows, splits), device, torch.float32, torch.int32, torch.int64)
    drawn = Drawn(scores=scores, score_ids=score_ids, mass=mass)
    token_ids = torch.empty(rows, dtype=torch.int64, device=device)
    probability, logprob = empty((rows,), device, torch.float32, torch.float32)
    found = first_pass(logits, batch, saved)
    if rows:
        _draw(logits, batch, found, drawn)
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
            logits.stride(0),
            V=vocabulary,
            BLOCK_SPLITS=power_of_two(splits),
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


def _draw(logits: Tensor, batch: SamplingBatch, found: Found, drawn: Drawn) -> None:
    # Without filters the kernel reads neither depth nor id.
    depth, highest = (
        find_cuts(logits, batch, found, drawn) if batch.filtered else (found.search, found.search)
    )
    draw[drawn.scores.shape](
        logits,
        found.shaped_best,
        batch.temperature,
        batch.seeds,
        batch.positions,
        found.search,
        depth,
        highest,
        found.leader,
        drawn.scores,
        drawn.score_ids,
        drawn.mass,
        logits.stride(0),
        V=logits.shape[1],
        BLOCK=BLOCK,
        FILTERED=batch.filtered,
        num_warps=8,
    )


def _logprobs(
    logits: Tensor, token_ids: Tensor, logprob: Tensor, normalizer: Tensor, count: int | None
) -> RowLogprobs | None:
    if count is None:
        return None
    rows, vocabulary = logits.shape
    device, splits = logits.device, -(-vocabulary // BLOCK)
    values, ids = empty((rows, splits, count), device, torch.float32, torch.int32)
    ranks = torch.ones(rows, dtype=torch.int32, device=device)
    top_ids, top_logprobs = empty((rows, count), device, torch.int32, torch.float32)
    if rows:
        constants = {"V": vocabulary, "COUNT": count, "num_warps": 8}
        best_of_split[(rows, splits)](
            logits, token_ids, values, ids, ranks, logits.stride(0), BLOCK=BLOCK, **constants
        )
        if count:
            width = splits * count
            best_of_row[(rows,)](
                values, ids, normalizer, top_ids, top_logprobs, width, BLOCK=power_of_two(width), **constants
            )
    return RowLogprobs(logprob=logprob, rank=ranks, top_token_ids=top_ids, top_logprobs=top_logprobs)
