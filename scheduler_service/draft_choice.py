"""How many drafts each decoding sequence gets: the number that promises the most tokens a second.

With acceptance a, k drafts are expected to commit 1 + a + … + a^k tokens. A draft deep in one sequence may be
worth less than a shallow one in another, so a candidate is a pair: no more than ``depth`` passes of the
drafter, and no draft that is expected to be accepted with a probability below ``floor``. All depths of
a floor share their first passes, so one running sum over passes prices them all. Before anything is priced, a
bound that no candidate exceeds says whether drafting can pay at all.
"""

from dataclasses import dataclass

import numpy as np

from scheduler_service.decode_batch import DecodeBatch, Ints
from scheduler_service.draft_tables import (
    FLOORS,
    LEVELS,
    CandidateTable,
    ContextTable,
    candidate_table,
    context_table,
    expected_tokens,
)
from scheduler_service.step_cost import FEW_ROWS, Floats
from scheduler_service.worker_costs import WorkerCosts


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftLimits:
    """What a choice of drafts must respect.

    Attributes:
        max_rows: Most rows of the step.
        budget_s: Time for the step; None = no limit.
        other_rows: Rows of prompt chunks in the step when nothing is drafted.
        least_rows: Rows of prompt chunks that must remain possible.
        least_s: Their attention, seconds.
        ended: Prompts that end in this step.
        gain: A candidate must promise this many times the tokens a second of plain decoding.
    """

    max_rows: int
    budget_s: float | None
    other_rows: int = 0
    least_rows: int = 0
    least_s: float = 0.0
    ended: int = 0
    gain: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DraftOption:
    """Drafts for all decoding sequences with their price; times are bare, without corrections.

    Attributes:
        draft_counts: Drafts of each sequence, shape (B,).
        rows: Rows of all sequences and drafts.
        attention_s: The verifier's attention for them, seconds; 0 without a table.
        draft_s: The drafter's own time, seconds; 0 without its table.
        expected_tokens: Tokens that the step is expected to commit for them.
    """

    draft_counts: Ints
    rows: int
    attention_s: float
    draft_s: float
    expected_tokens: float


class DraftPricing:
    """Prices drafts for the decoding sequences of one step.

    Args:
        batch: At least one sequence.
        costs: The cost models; None = everything takes no time.
    """

    def __init__(self, batch: DecodeBatch, costs: WorkerCosts | None) -> None:
        self._batch = batch
        self._costs = costs
        if costs is not None:
            self._contexts: ContextTable = context_table(costs.target, costs.draft)
            self._stretches = self._contexts.bounds.searchsorted(batch.contexts, side="right")

    def plain(self) -> DraftOption:
        """No drafts."""
        attention_s, count = 0.0, self._batch.count
        if self._costs is not None:
            line = self._contexts.by_drafts[0, :, 0]  # (2, S)
            attention_s = float(np.vdot(self._histogram(self._stretches, 1), line))
        return DraftOption(
            draft_counts=np.zeros(count, dtype=np.int64),
            rows=count,
            attention_s=attention_s,
            draft_s=0.0,
            expected_tokens=float(count),
        )

    def option(self, draft_counts: Ints) -> DraftOption:
        """Drafts that were chosen otherwise, shape (B,), each at most 16."""
        batch, costs = self._batch, self._costs
        attention_s = draft_s = 0.0
        if costs is not None:
            cells = draft_counts * self._contexts.count + self._stretches
            histogram = self._histogram(cells, FEW_ROWS)
            attention_s, draft_s = (self._contexts.by_drafts.reshape(2, -1) @ histogram).tolist()
            if costs.draft is not None:
                drafting = np.bincount(draft_counts, minlength=2)[:0:-1].cumsum()  # By pass, the last first.
                draft_s += float(costs.draft.sampled_pass.at_each(drafting).sum())
                lag, forward = float(batch.draft_lags @ (draft_counts > 0)), costs.draft.forward
                draft_s += forward.at(drafting[-1] + lag) - forward.at(drafting[-1])
        return DraftOption(
            draft_counts=draft_counts,
            rows=batch.count + int(draft_counts.sum()),
            attention_s=attention_s,
            draft_s=draft_s,
            expected_tokens=float(expected_tokens()[self._levels(), draft_counts].sum()),
        )

    def best(self, plain: DraftOption, limits: DraftLimits) -> DraftOption:
        """The candidate with the most expected tokens a second; ``plain`` when nothing beats it.

        Prompt chunks in the same step are charged to the prompts: a candidate pays what its rows cost on top
        of the chunks, where the cheap rows of a forward pass may already be taken.

        Args:
            plain: What :meth:`plain` returned.
            limits: What to respect.
        """
        costs, deepest = self._costs, int(self._batch.draft_caps.max())
        plain_s = 0.0 if costs is None else _plain_s(costs, plain, limits)
        if costs is None or not plain_s:
            return plain
        table = candidate_table(deepest)
        keys = self._levels() * (deepest + 1) + self._batch.draft_caps
        sizes = np.bincount(keys, minlength=table.drafts.shape[1]).astype(np.float64)
        wanted = limits.gain * plain.expected_tokens / plain_s
        bound = self._bound(plain, (table.tokens[:deepest] @ sizes).cumsum())
        if _rates(costs, bound, plain.rows, limits).max() < wanted * (1 - 1e-9):
            return plain
        menu = self._menu(plain, table, keys, sizes)
        rates = _rates(costs, menu, plain.rows, limits)
        allowed = (rates >= wanted) & (menu.rows + limits.least_rows <= limits.max_rows)
        if limits.budget_s is not None:
            allowed &= _least_s(costs, menu, limits) <= limits.budget_s
        best = int(np.where(allowed, rates, 0.0).argmax())
        if not allowed[best] or rates[best] * plain_s <= plain.expected_tokens:
            return plain
        return DraftOption(
            draft_counts=table.drafts[best][keys],
            rows=int(menu.rows[best]),
            attention_s=float(menu.attention_s[best]),
            draft_s=float(menu.draft_s[best]),
            expected_tokens=float(menu.expected_tokens[best]),
        )

    def _bound(self, plain: DraftOption, tokens: Floats) -> "_Menu":
        """For each depth, the fewest rows and the least time that it can take, for the most tokens.

        Args:
            plain: No drafts.
            tokens: Most tokens beyond one for each sequence, by depth, shape (J,).
        """
        assert self._costs
        assert self._costs.draft
        depths = np.arange(1, len(tokens) + 1)
        return _Menu(
            rows=plain.rows + depths,
            attention_s=np.full(len(depths), plain.attention_s),
            draft_s=np.asarray(depths * self._costs.draft.sampled_pass.at(1), dtype=np.float64),
            expected_tokens=plain.expected_tokens + tokens,
        )

    def _menu(self, plain: DraftOption, table: CandidateTable, keys: Ints, sizes: Floats) -> "_Menu":
        """All candidates priced, C = F * J of them: what each pass adds, then a running sum over passes."""
        assert self._costs
        draft = self._costs.draft
        assert draft
        deepest = len(table.drafts) // len(FLOORS)
        stretches = self._contexts.count
        histogram = self._histogram(keys * stretches + self._stretches, len(sizes))
        by_pass = np.matmul(table.passes, histogram.reshape(2, -1, stretches))  # (2, C, S)
        passes = (table.passes @ sizes).reshape(-1, deepest)  # Sequences in each, (F, J).
        added = np.empty((4, *passes.shape))
        added[0] = passes
        added[1] = (table.tokens @ sizes).reshape(passes.shape)
        by_pass = by_pass.reshape(2, -1, deepest, stretches)
        np.einsum("kfjs,wkjs->wfj", by_pass, self._contexts.by_pass[:, :, :deepest], out=added[2:])
        added[3] += draft.sampled_pass.at_each(passes)
        if self._batch.draft_lags.any():
            lags = table.passes[::deepest] @ np.bincount(keys, self._batch.draft_lags, len(sizes))  # (F,)
            first = draft.forward.at_each(np.stack((passes[:, 0], passes[:, 0] + lags)))
            added[3, :, 0] += first[1] - first[0]
        rows, tokens, attention_s, draft_s = added.cumsum(axis=2).reshape(4, -1)
        return _Menu(
            rows=plain.rows + rows,
            attention_s=plain.attention_s + attention_s,
            draft_s=draft_s,
            expected_tokens=plain.expected_tokens + tokens,
        )

    def _histogram(self, cells: Ints, kinds: int) -> Floats:
        """Sequences and their tokens of context by kind and stretch, shape (2, kinds * S), flat.

        Args:
            cells: ``kind * S + stretch`` of each sequence, shape (B,).
            kinds: How many there are.
        """
        size = kinds * self._contexts.count
        counts, tokens = np.bincount(cells, minlength=size), np.bincount(cells, self._batch.contexts, size)
        return np.concatenate((counts, tokens))

    def _levels(self) -> Ints:
        return np.rint(self._batch.acceptances * LEVELS).astype(np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Menu:
    """Candidates with their prices, shape (C,) each; as in :class:`DraftOption`."""

    rows: Ints | Floats
    attention_s: Floats
    draft_s: Floats
    expected_tokens: Floats


def _plain_s(costs: WorkerCosts, plain: DraftOption, limits: DraftLimits) -> float:
    cost = costs.target
    verify_s = cost.forward.at(plain.rows) + cost.head.at(plain.rows + limits.ended) + plain.attention_s
    return costs.target_factor * verify_s + costs.hop_s


def _rates(costs: WorkerCosts, menu: _Menu, plain_rows: int, limits: DraftLimits) -> Floats:
    """Expected tokens a second, shape (C,)."""
    forward = costs.target.forward
    forward_s = forward.at_each(menu.rows + limits.other_rows)
    if limits.other_rows:
        forward_s += forward.at(plain_rows) - forward.at(plain_rows + limits.other_rows)
    return menu.expected_tokens / _total_s(costs, menu, forward_s, limits)


def _least_s(costs: WorkerCosts, menu: _Menu, limits: DraftLimits) -> Floats:
    """Time with the least progress of prompts, shape (C,)."""
    forward_s = costs.target.forward.at_each(menu.rows + limits.least_rows) + limits.least_s
    return _total_s(costs, menu, forward_s, limits)


def _total_s(costs: WorkerCosts, menu: _Menu, forward_s: Floats, limits: DraftLimits) -> Floats:
    verify_s = forward_s + costs.target.head.at_each(menu.rows + limits.ended) + menu.attention_s
    return costs.target_factor * verify_s + costs.draft_factor * menu.draft_s + 2 * costs.hop_s
