"""The decoding sequences of a step as arrays, so that a step is planned in a few vector operations."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from scheduler_service.step_cost import FEW_ROWS, Floats
from scheduler_service.step_plan import SequenceView

Ints = npt.NDArray[np.int64]
_COLUMNS = len(SequenceView._fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeBatch:
    """One row and some drafts for each of B decoding sequences.

    Attributes:
        sequence_ids: B ids, in order of admission.
        unserved_s: Seconds since the last token of each.
        budget_s: What is left of the tightest time between tokens; None = no sequence has an SLO.
        contexts: Tokens in the KV cache, shape (B,).
        draft_caps: Most drafts, shape (B,); 0 where the drafter cannot help.
        draft_lags: Rows that the drafter computes besides the first, shape (B,).
        acceptances: Estimated acceptance, shape (B,).
    """

    sequence_ids: Sequence[int]
    unserved_s: Sequence[float]
    budget_s: float | None
    contexts: Ints
    draft_caps: Ints
    draft_lags: Ints
    acceptances: Floats

    @classmethod
    def of(cls, sequences: Sequence[SequenceView], *, draft: bool, max_draft_lag: int) -> "DecodeBatch":
        """Collects the columns; without ``draft`` every cap is 0."""
        columns: list[Sequence[Any]] = list(zip(*sequences, strict=True)) if sequences else [()] * _COLUMNS
        ids, _, contexts, _, caps, lags, acceptances, slos_s, _, _, unserved_s, _ = columns
        left_s: list[float] = []
        if slos_s.count(None) < len(slos_s):
            left_s = [slo - since for slo, since in zip(slos_s, unserved_s, strict=True) if slo is not None]
        draft_lags = np.array(lags, dtype=np.int64)
        draft_caps = np.array(caps if draft else [0] * len(ids), dtype=np.int64)
        return cls(
            sequence_ids=ids,
            unserved_s=unserved_s,
            budget_s=min(left_s, default=None),
            contexts=np.array(contexts, dtype=np.int64),
            draft_caps=np.where(draft_lags <= max_draft_lag, np.minimum(draft_caps, FEW_ROWS - 1), 0),
            draft_lags=draft_lags,
            acceptances=np.array(acceptances, dtype=np.float64),
        )

    @property
    def count(self) -> int:
        """B."""
        return len(self.sequence_ids)

    def select(self, kept: Ints) -> "DecodeBatch":
        """The sequences at these indices; the time budget stays that of all."""
        indices = kept.tolist()
        return DecodeBatch(
            sequence_ids=[self.sequence_ids[i] for i in indices],
            unserved_s=[self.unserved_s[i] for i in indices],
            budget_s=self.budget_s,
            contexts=self.contexts[kept],
            draft_caps=self.draft_caps[kept],
            draft_lags=self.draft_lags[kept],
            acceptances=self.acceptances[kept],
        )

    def pages(self, draft_counts: Ints | int, page_size: int) -> Ints:
        """New pages that each sequence needs for its row and its drafts, shape (B,)."""
        free_in_last = -self.contexts % page_size
        return -((free_in_last - 1 - draft_counts) // page_size)

    def draft_room(self, page_size: int) -> Ints:
        """Drafts that fit into the page which the row itself needs, shape (B,)."""
        return -(self.contexts + 1) % page_size
