"""Batches for the policy, written down sequence by sequence."""

import dataclasses
import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from scheduler_service.decode_batch import DecodeBatch
from scheduler_service.step_plan import BatchView, PromptView

PAGE = 16


class SequenceView(NamedTuple):
    """One running sequence; fields as in ``DecodeBatch`` and ``PromptView``."""

    sequence_id: int
    pending_token_count: int
    context_length: int
    decoding: bool
    max_draft_tokens: int = 0
    draft_lag: int = 0
    acceptance: float = 0.0
    itl_slo_s: float | None = None
    ttft_slo_s: float | None = None
    waited_s: float = 0.0
    since_last_token_s: float = 0.0
    priority: int = 0


def decode(sequence_id: int, context: int = 100, **fields: object) -> SequenceView:
    """A decoding sequence."""
    return SequenceView(sequence_id, 1, context, True, **fields)  # type: ignore[arg-type]


def prompt(sequence_id: int, pending: int, context: int = 0, **fields: object) -> SequenceView:
    """A sequence whose prompt is not computed."""
    return SequenceView(sequence_id, pending, context, False, **fields)  # type: ignore[arg-type]


def batch(
    *sequences: SequenceView, free_pages: int = 10_000, max_tokens: int = 2048, draft: bool = True
) -> BatchView:
    """The running sequences, in order of admission."""
    return BatchView(
        decoding=decode_batch([sequence for sequence in sequences if sequence.decoding]),
        prompts=[
            PromptView(
                s.sequence_id, s.pending_token_count, s.context_length, s.ttft_slo_s, s.waited_s, s.priority
            )
            for s in sequences
            if not s.decoding
        ],
        draft_available=draft,
        page_size=PAGE,
        free_page_count=free_pages,
        max_step_tokens=max_tokens,
    )


def decode_batch(sequences: Iterable[SequenceView]) -> DecodeBatch:
    """Decoding sequences as columns."""
    rows = list(sequences)
    return DecodeBatch(
        sequence_ids=np.array([s.sequence_id for s in rows], dtype=np.int64),
        contexts=np.array([s.context_length for s in rows], dtype=np.int64),
        draft_caps=np.array([s.max_draft_tokens for s in rows], dtype=np.int64),
        draft_lags=np.array([s.draft_lag for s in rows], dtype=np.int64),
        acceptances=np.array([s.acceptance for s in rows]),
        itl_slo_s=np.array([math.nan if s.itl_slo_s is None else s.itl_slo_s for s in rows]),
        since_last_s=np.array([s.since_last_token_s for s in rows]),
    )


def sequences_of(view: BatchView) -> list[SequenceView]:
    """The sequences of a batch again: decoding ones first."""
    columns = view.decoding
    decoding = [
        SequenceView(
            sequence_id, 1, int(columns.contexts[i]), True,
            max_draft_tokens=int(columns.draft_caps[i]),
            draft_lag=int(columns.draft_lags[i]),
            acceptance=float(columns.acceptances[i]),
            itl_slo_s=None if math.isnan(columns.itl_slo_s[i]) else float(columns.itl_slo_s[i]),
            since_last_token_s=float(columns.since_last_s[i]),
        )
        for i, sequence_id in enumerate(columns.sequence_ids.tolist())
    ]  # fmt: skip
    return [*decoding, *(SequenceView(*p[:3], False, ttft_slo_s=p.ttft_slo_s) for p in view.prompts)]


def without_slos(view: BatchView) -> BatchView:
    """The same batch, with no wishes for the time between tokens."""
    columns = view.decoding
    return dataclasses.replace(
        view, decoding=dataclasses.replace(columns, itl_slo_s=np.full(columns.count, math.nan))
    )
