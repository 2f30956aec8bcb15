"""What pricing looks up instead of computing it in every step; it depends on the latency table alone."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from scheduler_service.decode_batch import Ints
from scheduler_service.step_cost import FEW_ROWS, Floats, StepCost

LEVELS = 20  # Acceptance is rounded to 1 / 20; an estimate is not finer.
FLOORS = (0.0, 0.25, 0.5, 0.75)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ContextTable:
    """Attention of one sequence by context: straight lines over S stretches of it.

    A sum over sequences then needs no more of them than how many are in each stretch and how many tokens they
    have together.

    Attributes:
        bounds: Where a stretch ends and the next begins, shape (S - 1,).
        by_drafts: Seconds of a sequence with 0..16 drafts, shape (2, FEW_ROWS, 2 * S): the target's, and the
            drafter's in all passes; at context 0 in each stretch, then for each token of context in each.
        by_pass: What one more draft adds to it, shape (2, FEW_ROWS - 1, 2 * S).
    """

    bounds: Floats
    by_drafts: Floats
    by_pass: Floats

    @property
    def count(self) -> int:
        """S."""
        return len(self.bounds) + 1


@lru_cache(maxsize=8)
def context_table(target: StepCost, draft: StepCost | None) -> ContextTable:
    """The table of a pair of models; a drafter that was not measured costs nothing."""
    contexts = [cost.attention_contexts for cost in (target, draft) if cost is not None]
    nodes = np.unique(np.concatenate([[0.0], *contexts]))
    verified = [np.interp(nodes, target.attention_contexts, line) for line in target.few_rows_attention_s]
    drafted = np.zeros((FEW_ROWS, len(nodes)))
    if draft is not None:
        line = np.interp(nodes, draft.attention_contexts, draft.few_rows_attention_s[0])
        drafted = np.arange(FEW_ROWS)[:, None] * line
    seconds = np.stack((np.stack(verified), drafted))
    slopes = np.diff(seconds) / np.diff(nodes)
    by_drafts = np.concatenate((seconds[..., :-1] - slopes * nodes[:-1], slopes), axis=2)
    return ContextTable(bounds=nodes[1:-1], by_drafts=by_drafts, by_pass=np.diff(by_drafts, axis=1))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CandidateTable:
    """Candidates (floor, depth) by key, which is ``level * (deepest + 1) + cap`` of a sequence.

    F floors, J depths 1..deepest, K keys.

    Attributes:
        drafts: Drafts of a sequence, shape (F * J, K).
        passes: 1 where the candidate's last pass drafts for a sequence, shape (F * J, K).
        passes_and_tokens: The same, and below it the tokens expected from that draft, shape (2 * F * J, K).
    """

    drafts: Ints
    passes: Floats
    passes_and_tokens: Floats


@lru_cache(maxsize=FEW_ROWS)
def candidate_table(deepest: int) -> CandidateTable:
    """The table for sequences of which none may have more than ``deepest`` drafts, 1..16."""
    depths = np.arange(1, deepest + 1)
    levels, caps = np.divmod(np.arange((LEVELS + 1) * (deepest + 1)), deepest + 1)
    survival = (levels / LEVELS) ** depths[:, None]  # (J, K)
    longest = np.stack([np.minimum((survival >= floor).sum(axis=0), caps) for floor in FLOORS])  # (F, K)
    drafts = np.minimum(longest[:, None], depths[:, None])  # (F, J, K)
    passes = longest[:, None] >= depths[:, None]
    both = np.stack((passes.astype(np.float64), passes * survival)).reshape(-1, len(levels))
    half = len(both) // 2
    return CandidateTable(drafts=drafts.reshape(half, -1), passes=both[:half], passes_and_tokens=both)


@lru_cache(maxsize=1)
def expected_tokens() -> Floats:
    """Tokens that a sequence is expected to commit by acceptance level and drafts, (LEVELS + 1, FEW_ROWS)."""
    levels = np.arange(LEVELS + 1)[:, None] / LEVELS
    return np.asarray((levels ** np.arange(FEW_ROWS)).cumsum(axis=1))
