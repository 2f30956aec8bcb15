"""How many drafts each decoding sequence gets: the number that promises the most tokens a second.

With acceptance a, k drafts are expected to commit 1 + a + … + a^k tokens. A draft deep in one sequence may be
worth less than a shallow one in another, so a candidate is a pair: no more than ``depth`` passes of the
drafter, and no draft that is expected to be accepted with a probability below ``floor``. All depths of
a floor share their first passes, so one running sum over passes prices them all. Before anything is priced, a
bound that no candidate exceeds says whether drafting can pay at all.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from scheduler_service.decode_batch import DecodeBatch, Ints
from scheduler_service.draft_tables import (
    FLOORS,
    LEVELS,
    ContextTable,
    candidate_table,
    context_table,
    expected_tokens,
)
from scheduler_service.step_cost import FEW_ROWS, Floats, StepCost
from scheduler_service.worker_costs import WorkerCosts

_T = TypeVar("_T", float, Floats)


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
            self._weights = np.concatenate((np.ones(batch.count), batch.contexts))

    def plain(self) -> DraftOption:
        """No drafts."""
        attention_s, count = 0.0, self._batch.count
        if self._costs is not None:
            attention_s = float(self._contexts.by_drafts[0, 0] @ self._histogram(0, 1)[0])
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
            histogram = self._histogram(draft_counts, FEW_ROWS).reshape(-1)
            attention_s, draft_s = (self._contexts.by_drafts.reshape(2, -1) @ histogram).tolist()
            if costs.draft is not None:
                drafting = np.bincount(draft_counts, minlength=2)[:0:-1].cumsum()  # By pass, the last first.
                draft_s += float(costs.draft.sampled_pass.at_each(drafting).sum())
                first, lag = int(drafting[-1]), int(batch.draft_lags @ (draft_counts > 0))
                draft_s += costs.draft.forward.at(first + lag) - costs.draft.forward.at(first)
        return DraftOption(
            draft_counts=draft_counts,
            rows=batch.count + int(draft_counts.sum()),
            attention_s=attention_s,
            draft_s=draft_s,
            expected_tokens=float(expected_tokens()[self._levels(), draft_counts].sum()),
        )

    def best(self, plain: DraftOption, limits: DraftLimits) -> DraftOption:
        """The candidate with the most expected tokens a second; ``plain`` when nothing beats it.

        At least one sequence may have drafts. Prompt chunks in the same step are charged to the prompts: a
        candidate pays what its rows cost on top of the chunks, where the cheap rows of a forward pass may
        already be taken.

        Args:
            plain: What :meth:`plain` returned.
            limits: What to respect.
        """
        if self._costs is None or self._costs.draft is None:
            return plain
        choice = _Choice(self._costs, self._costs.draft, plain, limits)
        if not choice.plain_rate:
            return plain
        return self._best_alone(choice) if plain.rows == 1 else self._best_together(choice)

    def _best_alone(self, choice: "_Choice") -> DraftOption:
        """The best number of drafts for the only sequence, without the cost of arrays."""
        batch, best, best_rate = self._batch, choice.plain, choice.plain_rate
        lag, forward = int(batch.draft_lags[0]), choice.draft.forward
        lines, stretch = self._contexts.by_drafts, int(self._stretches[0])
        slopes = lines[..., stretch + self._contexts.count]  # (2, FEW_ROWS)
        attention_s, draft_attention_s = (lines[..., stretch] + slopes * batch.contexts[0]).tolist()
        tokens = expected_tokens()[self._levels()[0]].tolist()
        lag_s, pass_s = forward.at(1 + lag) - forward.at(1), choice.draft.sampled_pass.at(1)
        for drafts in range(1, int(batch.draft_caps[0]) + 1):
            draft_s = drafts * pass_s + draft_attention_s[drafts] + lag_s
            rate = tokens[drafts] / choice.step_s(1 + drafts, attention_s[drafts], draft_s)
            if rate > best_rate and choice.allows(rate, 1 + drafts, attention_s[drafts], draft_s):
                best_rate = rate
                best = DraftOption(
                    draft_counts=np.array([drafts]),
                    rows=1 + drafts,
                    attention_s=attention_s[drafts],
                    draft_s=draft_s,
                    expected_tokens=tokens[drafts],
                )
        return best

    def _best_together(self, choice: "_Choice") -> DraftOption:
        """The best of all candidates, C = F * J: what each pass adds, then a running sum over passes."""
        batch, plain = self._batch, choice.plain
        deepest = int(batch.draft_caps.max())
        table = candidate_table(deepest)
        keys = self._levels() * (deepest + 1) + batch.draft_caps
        kinds = table.drafts.shape[1]
        sizes = np.bincount(keys, minlength=kinds).astype(np.float64)
        added = np.empty((4, len(FLOORS), deepest))
        np.matmul(table.passes_and_tokens, sizes, out=added[:2].reshape(-1))
        if not choice.may_pay(added[1, 0].tolist()):
            return plain
        passes = added[0]  # Sequences in each, (F, J).
        by_pass = (table.passes @ self._histogram(keys, kinds)).reshape(*passes.shape, -1)  # (F, J, 2 * S)
        np.einsum("fjs,wjs->wfj", by_pass, self._contexts.by_pass[:, :deepest], out=added[2:])
        added[3] += choice.draft.sampled_pass.at_each(passes)
        if np.count_nonzero(batch.draft_lags):
            lags = table.passes[::deepest] @ np.bincount(keys, batch.draft_lags, kinds)  # (F,)
            forward = choice.draft.forward
            added[3, :, 0] += forward.at_each(passes[:, 0] + lags) - forward.at_each(passes[:, 0])
        rows, tokens, attention_s, draft_s = added.cumsum(axis=2).reshape(4, -1)
        rows += plain.rows
        tokens += plain.expected_tokens
        attention_s += plain.attention_s
        best = choice.best(rows, tokens, attention_s, draft_s)
        if best is None:
            return plain
        return DraftOption(
            draft_counts=table.drafts[best][keys],
            rows=int(rows[best]),
            attention_s=float(attention_s[best]),
            draft_s=float(draft_s[best]),
            expected_tokens=float(tokens[best]),
        )

    def _histogram(self, kinds: Ints | int, kind_count: int) -> Floats:
        """Sequences, then their tokens of context, in each stretch, shape (kind_count, 2 * S).

        Args:
            kinds: What to tell sequences apart by, shape (B,).
            kind_count: One more than the highest.
        """
        stretches = self._contexts.count
        cells = kinds * (2 * stretches) + self._stretches
        sums = np.bincount(
            np.concatenate((cells, cells + stretches)), self._weights, kind_count * 2 * stretches
        )
        return np.asarray(sums.reshape(kind_count, -1), dtype=np.float64)

    def _levels(self) -> Ints:
        return np.rint(self._batch.acceptances * LEVELS).astype(np.int64)


class _Choice:
    """Judges candidates by their price.

    Args:
        costs: Both cost models.
        draft: The drafter's.
        plain: No drafts.
        limits: What to respect.

    Attributes:
        plain_rate: Expected tokens a second without drafts; 0 when nothing takes time.
    """

    def __init__(self, costs: WorkerCosts, draft: StepCost, plain: DraftOption, limits: DraftLimits) -> None:
        forward, head = costs.target.forward, costs.target.head
        self.draft, self.plain = draft, plain
        self._costs, self._limits = costs, limits
        self._shared_s = 0.0  # What the chunks' rows make cheaper, or dearer, for the candidates.
        if limits.other_rows:
            self._shared_s = forward.at(plain.rows) - forward.at(plain.rows + limits.other_rows)
        verify_s = forward.at(plain.rows) + head.at(plain.rows + limits.ended) + plain.attention_s
        plain_s = costs.target_factor * verify_s + costs.hop_s
        self.plain_rate = plain.expected_tokens / plain_s if plain_s else 0.0
        self._wanted_rate = limits.gain * self.plain_rate

    def may_pay(self, tokens: Sequence[float]) -> bool:
        """Whether any candidate could be good enough.

        For each depth, the most tokens are set against the fewest rows and the least time that it can take.

        Args:
            tokens: Most tokens that each pass may add.
        """
        pass_s, most, rows = self.draft.sampled_pass.at(1), self.plain.expected_tokens, self.plain.rows
        for depth, more in enumerate(tokens, start=1):
            most += more
            least_s = self.step_s(rows + depth, self.plain.attention_s, depth * pass_s)
            if most >= self._wanted_rate * least_s * (1 - 1e-9):
                return True
        return False

    def step_s(self, rows: int, attention_s: float, draft_s: float) -> float:
        """Seconds that are charged to one candidate."""
        target = self._costs.target
        forward_s = target.forward.at(rows + self._limits.other_rows) + self._shared_s
        return self._total_s(forward_s, target.head.at(rows + self._limits.ended), attention_s, draft_s)

    def allows(self, rate: float, rows: int, attention_s: float, draft_s: float) -> bool:
        """Whether one candidate is good enough and keeps every limit."""
        target, limits = self._costs.target, self._limits
        if rate < self._wanted_rate or rows + limits.least_rows > limits.max_rows:
            return False
        if limits.budget_s is None:
            return True
        forward_s = target.forward.at(rows + limits.least_rows) + limits.least_s
        step_s = self._total_s(forward_s, target.head.at(rows + limits.ended), attention_s, draft_s)
        return step_s <= limits.budget_s

    def best(self, rows: Floats, tokens: Floats, attention_s: Floats, draft_s: Floats) -> int | None:
        """The candidate with the highest rate of those that :meth:`allows` would allow; None = no such.

        Args:
            rows: Rows of each candidate, shape (C,).
            tokens: Expected tokens, shape (C,).
            attention_s: The verifier's attention, shape (C,).
            draft_s: The drafter's time, shape (C,).
        """
        target, limits = self._costs.target, self._limits
        head_s = target.head.at_each(rows + limits.ended)
        forward_s = target.forward.at_each(rows + limits.other_rows) + self._shared_s
        rates = tokens / self._total_s(forward_s, head_s, attention_s, draft_s)
        allowed = rates >= self._wanted_rate
        allowed &= rows <= limits.max_rows - limits.least_rows
        if limits.budget_s is not None:
            forward_s = target.forward.at_each(rows + limits.least_rows) + limits.least_s
            allowed &= self._total_s(forward_s, head_s, attention_s, draft_s) <= limits.budget_s
        rates *= allowed
        best = int(rates.argmax())
        return best if rates[best] > self.plain_rate else None

    def _total_s(self, forward_s: _T, head_s: _T, attention_s: _T, draft_s: _T) -> _T:
        costs = self._costs
        verify_s = forward_s + head_s + attention_s
        return costs.target_factor * verify_s + costs.draft_factor * draft_s + 2 * costs.hop_s
