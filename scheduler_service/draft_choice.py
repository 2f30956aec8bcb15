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
_KEYS = (_LEVELS + 1) * FEW_ROWS
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
    rows: Floats
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


def draft_menu(batch: DecodeBatch, costs: WorkerCosts) -> DraftMenu:
    """Prices the sensible candidates for a batch of at least one sequence.

    Args:
        batch: The decoding sequences.
        costs: Both cost models.
    """
    assert costs.draft is not None
    # Sequences that get no drafts are alike, whatever their acceptance.
    levels = np.rint(batch.acceptances * _LEVELS).astype(np.int64)
    keys = np.where(batch.draft_caps > 0, levels * FEW_ROWS + batch.draft_caps, 0)
    sizes = np.bincount(keys, minlength=_KEYS)
    present = sizes.nonzero()[0]
    group_of_key = sizes  # Reused: from here on the group of each key.
    weights = sizes[present].astype(np.float64)
    group_of_key[present] = np.arange(len(present))
    groups = group_of_key[keys]

    table = _candidates(int(batch.draft_caps.max()))
    drafts = table.drafts[present]
    sums = weights @ table.columns[present]
    count = drafts.shape[1]
    expected, drafted = sums[:count], sums[count : 2 * count]
    passes = sums[2 * count :].reshape(count, -1)  # Rows of each pass of the drafter, shape (C, passes).
    where = _group_contexts(batch, costs.target.attention_contexts, groups, len(present))
    surface = where @ costs.target.few_rows_attention_s.T  # (G, FEW_ROWS)
    if not np.array_equal(costs.draft.attention_contexts, costs.target.attention_contexts):
        where = _group_contexts(batch, costs.draft.attention_contexts, groups, len(present))
    draft_s = costs.draft.sampled_pass.at_each(passes).sum(axis=1)
    draft_s += where @ costs.draft.few_rows_attention_s[0] @ drafts
    lags = np.bincount(groups, batch.draft_lags, len(present)) @ (drafts > 0)
    first = costs.draft.forward.at_each(np.stack((passes[:, 0], passes[:, 0] + lags)))
    draft_s += first[1] - first[0]
    return DraftMenu(
        groups=groups,
        drafts=drafts,
        rows=batch.count + drafted,
        attention_s=surface[np.arange(len(present))[:, None], drafts].sum(axis=0),
        draft_s=draft_s,
        expected_tokens=expected,
    )


def price(batch: DecodeBatch, costs: WorkerCosts | None, draft_counts: Ints) -> DraftOption:
    """Prices drafts that were chosen otherwise, shape (B,), for a batch of at least one sequence."""
    levels = np.rint(batch.acceptances * _LEVELS).astype(np.int64)
    attention_s = draft_s = 0.0
    drafting = bool(draft_counts.any())
    if costs is not None:
        segment, share = _locate(costs.target.attention_contexts, batch.contexts)
        surface = costs.target.few_rows_attention_s
        low = surface[draft_counts, segment]
        attention_s = float((low + share * (surface[draft_counts, segment + 1] - low)).sum())
    if costs is not None and costs.draft is not None and drafting:
        segment, share = _locate(costs.draft.attention_contexts, batch.contexts)
        line = costs.draft.few_rows_attention_s[0]
        each = line[segment] + share * (line[segment + 1] - line[segment])
        passes = np.bincount(draft_counts)[:0:-1].cumsum()  # Rows of each pass, the last first.
        lag = float(batch.draft_lags[draft_counts > 0].sum())
        forward = costs.draft.forward
        draft_s = float(costs.draft.sampled_pass.at_each(passes).sum() + each @ draft_counts)
        draft_s += forward.at(passes[-1] + lag) - forward.at(passes[-1])
    return DraftOption(
        draft_counts=draft_counts,
        rows=batch.count + int(draft_counts.sum()),
        attention_s=attention_s,
        draft_s=draft_s,
        expected_tokens=float(_token_table()[levels, draft_counts].sum()),
    )


def _group_contexts(batch: DecodeBatch, nodes: Floats, groups: Ints, group_count: int) -> Floats:
    """How many sequences of each group sit at each context node, shape (G, nodes), by linear shares.

    Its product with times at the nodes sums the interpolated times of a group.
    """
    segment, share = _locate(nodes, batch.contexts)
    cells = groups * len(nodes) + segment
    size = group_count * len(nodes)
    weights = np.bincount(cells, 1 - share, size) + np.bincount(cells + 1, share, size)
    return np.asarray(weights.reshape(group_count, len(nodes)), dtype=np.float64)


def _locate(nodes: Floats, contexts: Ints) -> tuple[Ints, Floats]:
    """Segment between two nodes and position in it for each context, shape (B,) each."""
    segment = nodes[1:-1].searchsorted(contexts, side="right")
    low = nodes[segment]
    return segment, np.maximum((contexts - low) / (nodes[segment + 1] - low), 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidates:
    """All candidates for every key ``level * FEW_ROWS + cap``; candidate 0 drafts nothing.

    Attributes:
        drafts: Drafts, shape (keys, C).
        columns: Expected tokens (C), drafts (C), and for each candidate which passes it takes part in
            (C x passes), side by side: one product with group sizes sums all of them.
    """

    drafts: Ints
    columns: Floats


@lru_cache(maxsize=FEW_ROWS)
def _candidates(deepest: int) -> _Candidates:
    survival = _acceptance() ** np.arange(1, deepest + 1)  # (levels + 1, deepest)
    by_level = [np.zeros(_LEVELS + 1, dtype=np.int64)]
    for depth in [depth for depth in _DEPTHS if depth < deepest] + [deepest]:
        by_level += [np.minimum((survival >= floor).sum(axis=1), depth) for floor in _FLOORS]
    unique = np.unique(np.stack(by_level, axis=1), axis=1)  # (levels + 1, C)
    levels, caps = np.arange(_KEYS) // FEW_ROWS, np.arange(_KEYS) % FEW_ROWS
    drafts = np.minimum(unique[levels], caps[:, None])
    takes_part = (drafts[:, :, None] > np.arange(deepest)).reshape(_KEYS, -1)
    tokens = _token_table()[levels[:, None], drafts]
    return _Candidates(drafts=drafts, columns=np.concatenate((tokens, drafts, takes_part), axis=1))


@lru_cache(maxsize=1)
def _token_table() -> Floats:
    """Expected tokens by acceptance level and drafts, shape (levels + 1, FEW_ROWS)."""
    return np.asarray((_acceptance() ** np.arange(FEW_ROWS)).cumsum(axis=1))


def _acceptance() -> Floats:
    return np.arange(_LEVELS + 1)[:, None] / _LEVELS
