"""The decoding sequences of a step as arrays, so that a step is planned in a few vector operations."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from scheduler_service.step_cost import FEW_ROWS, Floats

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecodeBatch:
    """One row and some drafts for each of B decoding sequences, in order of admission.

    The target holds all tokens of each but the one sampled last. Nobody writes to the arrays.

    Attributes:
        sequence_ids: Repeated in the plan, shape (B,).
        contexts: Tokens whose KV the target holds, shape (B,).
        draft_caps: Most drafts this step (request, server, rest of max_tokens and context), shape (B,);
            0 = off.
        draft_lags: Tokens that the drafter must compute besides the usual one before its first draft,
            shape (B,).
        acceptances: Estimated probability that the next draft token is accepted, 0..1, shape (B,).
        itl_slo_s: Wanted time between tokens, shape (B,); NaN = no wish.
        since_last_s: Seconds since the last token was committed, shape (B,).
    """

    sequence_ids: Ints
    contexts: Ints
    draft_caps: Ints
    draft_lags: Ints
    acceptances: Floats
    itl_slo_s: Floats
    since_last_s: Floats

    @property
    def count(self) -> int:
        """B."""
        return len(self.sequence_ids)

    @property
    def budget_s(self) -> float | None:
        """What is left of the tightest time between tokens; None = no sequence has an SLO."""
        if not self.count:
            return None
        left_s = float(np.fmin.reduce(self.itl_slo_s - self.since_last_s))
        return left_s if left_s == left_s else None

    def with_drafts(self, *, available: bool, max_lag: int) -> "DecodeBatch":
        """The same with caps that are 0 where the drafter cannot help, and at most what a step may verify."""
        caps = np.minimum(self.draft_caps, FEW_ROWS - 1)
        caps *= self.draft_lags <= max_lag if available else False
        return DecodeBatch(
            sequence_ids=self.sequence_ids,
            contexts=self.contexts,
            draft_caps=caps,
            draft_lags=self.draft_lags,
            acceptances=self.acceptances,
            itl_slo_s=self.itl_slo_s,
            since_last_s=self.since_last_s,
        )

    def select(self, kept: Ints) -> "DecodeBatch":
        """The sequences at these indices."""
        return DecodeBatch(
            sequence_ids=self.sequence_ids[kept],
            contexts=self.contexts[kept],
            draft_caps=self.draft_caps[kept],
            draft_lags=self.draft_lags[kept],
            acceptances=self.acceptances[kept],
            itl_slo_s=self.itl_slo_s[kept],
            since_last_s=self.since_last_s[kept],
        )

    def fit(
        self, max_rows: int, free_page_count: int, page_size: int
    ) -> tuple["DecodeBatch", Literal["none", "tokens", "pages"]]:
        """The sequences that fit, and what kept others out.

        Args:
            max_rows: Most sequences.
            free_page_count: Pages for those that need a new one.
            page_size: Tokens in a page.
        """
        batch = self
        left_out: Literal["none", "tokens", "pages"] = "none"
        if batch.count > max_rows:
            # The longest unserved go first, so that none waits for ever.
            order = np.argsort(-batch.since_last_s, kind="stable")
            batch, left_out = batch.select(np.sort(order[:max_rows])), "tokens"
        if batch.count > free_page_count:
            pages = batch.pages(0, page_size)
            fits = (pages == 0) | (pages.cumsum() <= free_page_count)
            if not fits.all():
                batch, left_out = batch.select(fits.nonzero()[0]), "pages"
        return batch, left_out

    def pages(self, draft_counts: Ints | int, page_size: int) -> Ints:
        """New pages that each sequence needs for its row and its drafts, shape (B,)."""
        free_in_last = -self.contexts % page_size
        return -((free_in_last - 1 - draft_counts) // page_size)

    def plain_page_count(self, page_size: int) -> int:
        """New pages that all sequences together need without drafts."""
        return int(np.count_nonzero(self.contexts % page_size == 0))

    def draft_room(self, page_size: int) -> Ints:
        """Drafts that fit into the page which the row itself needs, shape (B,)."""
        return -(self.contexts + 1) % page_size
