"""How many drafts each decoding sequence gets: the number that promises the most tokens a second.

With acceptance a, k drafts are expected to commit 1 + a + … + a^k tokens. A draft deep in one sequence may be
worth less than a shallow one in another, so a candidate is a pair: no more than ``depth`` passes of the
drafter, and no draft that is expected to be accepted with a probability below ``floor``. All candidates are
priced at once, for groups of sequences that are alike in acceptance and cap.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from scheduler_service.decode_batch import DecodeBatch, Ints
from scheduler_service.step_cost import FEW_ROWS, Floats, StepCost

_LEVELS = 20  # Acceptance is rounded to 1 / 20; an estimate is not finer.
_DEPTHS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16)
_FLOORS = (0.0, 0.25, 0.5, 0.75)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCosts:
    """The cost models of the workers with their corrections, and the price of reaching them.

    Attributes:
        target: The verifier's.
        draft: The drafter's; None = not measured.
        target_factor: Measured over predicted time of the verifier.
        draft_factor: Measured over predicted time of the drafter.
        hop_s: One round trip, seconds.
    """

    target: StepCost
    draft: StepCost | None
    target_factor: float
    draft_factor: float
    hop_s: float


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


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftMenu:
    """C candidates for G groups of alike sequences, priced. Candidate 0 drafts nothing.

    Attributes:
        groups: Group of each sequence, shape (B,).
        drafts: Drafts of each sequence of a group, shape (G, C).
        rows: As in :class:`DraftOption`, shape (C,); likewise the following.
        attention_s: Seconds.
        draft_s: Seconds.
        expected_tokens: Tokens.
    """

    groups: Ints
    drafts: Ints
    rows: Ints
    attention_s: Floats
    draft_s: Floats
    expected_tokens: Floats

    def option(self, candidate: int) -> DraftOption:
        """One of the candidates."""
        return DraftOption(
            draft_counts=self.drafts[:, candidate][self.groups],
            rows=int(self.rows[candidate]),
            attention_s=float(self.attention_s[candidate]),
            draft_s=float(self.draft_s[candidate]),
            expected_tokens=float(self.expected_tokens[candidate]),
        )

    def best(self, costs: WorkerCosts, limits: DraftLimits) -> int:
        """The candidate with the most expected tokens a second; 0 when plain decoding is faster.

        Prompt chunks in the same step are charged to the prompts: a candidate pays what its rows cost on top
        of the chunks, where the cheap rows of a forward pass may already be taken.
        """
        forward, rows = costs.target.forward, self.rows
        hops_s = costs.hop_s * np.where(self.draft_s > 0, 2, 1)
        besides_s = self.attention_s + costs.target.head.at_each(rows + limits.ended)
        draft_s = costs.draft_factor * self.draft_s + hops_s
        plain = int(rows[0])
        forward_s = forward.at_each(rows + limits.other_rows)
        forward_s += forward.at(plain) - forward.at(plain + limits.other_rows)
        rates = self.expected_tokens / (costs.target_factor * (forward_s + besides_s) + draft_s)
        feasible = (rows + limits.least_rows <= limits.max_rows) & (rates >= limits.gain * rates[0])
        if limits.budget_s is not None:
            least_s = forward.at_each(rows + limits.least_rows) + limits.least_s
            feasible &= costs.target_factor * (least_s + besides_s) + draft_s <= limits.budget_s
        feasible[0] = True
        return int(np.where(feasible, rates, 0.0).argmax())


def draft_menu(batch: DecodeBatch, costs: WorkerCosts | None) -> DraftMenu:
    """Prices the sensible candidates for a batch of at least one sequence."""
    # Sequences that get no drafts are alike, whatever their acceptance.
    levels = np.rint(batch.acceptances * _LEVELS).astype(np.int64)
    keys = np.where(batch.draft_caps > 0, levels * FEW_ROWS + batch.draft_caps, 0)
    sizes = np.bincount(keys)
    present = sizes.nonzero()[0]
    group_of_key = np.zeros(len(sizes), dtype=np.int64)
    group_of_key[present] = np.arange(len(present))
    levels, caps = present // FEW_ROWS, present % FEW_ROWS
    drafts = np.minimum(_draft_table(int(caps.max()))[levels], caps[:, None])
    return _price(batch, costs, group_of_key[keys], sizes[present], levels, drafts)


def price(batch: DecodeBatch, costs: WorkerCosts | None, draft_counts: Ints) -> DraftOption:
    """Prices drafts that were chosen otherwise, shape (B,), for a batch of at least one sequence."""
    groups = np.arange(batch.count)
    levels = np.rint(batch.acceptances * _LEVELS).astype(np.int64)
    menu = _price(batch, costs, groups, np.ones_like(groups), levels, draft_counts[:, None])
    return menu.option(0)


def _price(
    batch: DecodeBatch, costs: WorkerCosts | None, groups: Ints, sizes: Ints, levels: Ints, drafts: Ints
) -> DraftMenu:
    """Prices ``drafts`` (G, C) for groups of ``sizes`` (G,) sequences and acceptance ``levels`` (G,)."""
    attention_s = draft_s = np.zeros(drafts.shape[1])
    if costs is not None:
        surface = _group_attention(batch, costs.target, groups, len(sizes))
        attention_s = surface[np.arange(len(sizes))[:, None], drafts].sum(axis=0)
        if costs.draft is not None and drafts.any():
            draft_s = _draft_seconds(batch, costs.draft, groups, sizes, drafts)
    return DraftMenu(
        groups=groups,
        drafts=drafts,
        rows=sizes @ (drafts + 1),
        attention_s=attention_s,
        draft_s=draft_s,
        expected_tokens=sizes @ _token_table()[levels[:, None], drafts],
    )


def _group_attention(batch: DecodeBatch, cost: StepCost, groups: Ints, group_count: int) -> Floats:
    """Attention of each group at 1..FEW_ROWS rows a sequence, shape (G, FEW_ROWS), seconds."""
    nodes = cost.attention_contexts
    width = len(nodes)
    segment = nodes[1:-1].searchsorted(batch.contexts, side="right")
    low = nodes[segment]
    share = np.maximum((batch.contexts - low) / (nodes[segment + 1] - low), 0.0)
    cells = groups * width + segment
    size = group_count * width
    weights = np.bincount(cells, 1 - share, size) + np.bincount(cells + 1, share, size)
    return np.asarray(weights.reshape(group_count, width) @ cost.few_rows_attention_s.T)


def _draft_seconds(batch: DecodeBatch, cost: StepCost, groups: Ints, sizes: Ints, drafts: Ints) -> Floats:
    """The drafter's own time for each candidate, shape (C,)."""
    group_count, candidates = drafts.shape
    width = int(drafts.max()) + 1
    cells = (drafts + width * np.arange(candidates)).ravel()
    weights = np.broadcast_to(sizes[:, None], drafts.shape).ravel()
    wanting = np.bincount(cells, weights, candidates * width).reshape(candidates, width)
    # Pass j runs for the sequences that want at least j drafts.
    rows = wanting[:, :0:-1].cumsum(axis=1)[:, ::-1]  # (C, passes)
    lags = np.bincount(groups, batch.draft_lags, group_count) @ (drafts > 0)
    attention_s = _group_attention(batch, cost, groups, group_count)[:, 0] @ drafts
    head_s = cost.head.at_each(rows).sum(axis=1)
    rows[:, 0] += lags
    return np.asarray(attention_s + head_s + cost.forward.at_each(rows).sum(axis=1))


@lru_cache(maxsize=32)
def _draft_table(deepest: int) -> Ints:
    """Drafts by acceptance level and candidate, shape (levels + 1, C); candidate 0 drafts nothing."""
    survival = _acceptance() ** np.arange(1, deepest + 1)  # (levels + 1, deepest)
    columns = [np.zeros(_LEVELS + 1, dtype=np.int64)]
    for depth in [depth for depth in _DEPTHS if depth < deepest] + [deepest]:
        columns += [np.minimum((survival >= floor).sum(axis=1), depth) for floor in _FLOORS]
    return np.unique(np.stack(columns, axis=1), axis=1)


@lru_cache(maxsize=1)
def _token_table() -> Floats:
    """Expected tokens by acceptance level and drafts, shape (levels + 1, FEW_ROWS)."""
    return np.asarray((_acceptance() ** np.arange(FEW_ROWS)).cumsum(axis=1))


def _acceptance() -> Floats:
    return np.arange(_LEVELS + 1)[:, None] / _LEVELS
