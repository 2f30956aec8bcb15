"""Draft choice and prices, against the same written down one sequence and one candidate after the other."""

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_service.draft_choice import DraftLimits, DraftOption, DraftPricing
from scheduler_service.latency_table import LatencyTable
from scheduler_service.step_plan import Correction, PolicyConfig
from scheduler_service.worker_costs import WorkerCosts, worker_costs
from tests.scheduler_service.latencies import compute_bound, memory_bound
from tests.scheduler_service.views import SequenceView, decode, decode_batch

UNTIMED = settings(deadline=None)  # How long an example takes is no claim of these tests.
FLOORS = (0.0, 0.25, 0.5, 0.75)


def costs_of(table: LatencyTable, *, linear: bool = False) -> WorkerCosts:
    config = PolicyConfig(kind="linear" if linear else "table")
    costs = worker_costs(table, config, Correction(target=1.2, draft=0.9))
    assert costs
    return costs


sequences = st.builds(
    lambda context, cap, lag, level: decode(
        0, context, max_draft_tokens=cap, draft_lag=lag, acceptance=level / 20
    ),
    st.integers(0, 9000),
    st.integers(0, 16),
    st.sampled_from([0, 0, 1, 5, 16]),
    st.integers(0, 20),
)
batches = st.lists(sequences, min_size=1, max_size=12)
draftable = batches.filter(lambda batch: any(sequence.max_draft_tokens for sequence in batch))
costs_to_try = st.builds(
    costs_of,
    st.sampled_from([memory_bound(), compute_bound(0.05), compute_bound(0.5)]),
    linear=st.booleans(),
)
limits_to_try = st.builds(
    DraftLimits,
    max_rows=st.sampled_from([16, 40, 2048]),
    budget_s=st.none() | st.floats(0.005, 0.2),
    other_rows=st.sampled_from([0, 0, 48, 500]),
    least_rows=st.sampled_from([0, 16]),
    least_s=st.sampled_from([0.0, 0.001]),
    ended=st.integers(0, 2),
    gain=st.sampled_from([1.0, 1.03, 1.5]),
)


def price(batch: Sequence[SequenceView], drafts: Sequence[int], costs: WorkerCosts) -> DraftOption:
    """One sequence after the other."""
    assert costs.draft
    attention_s = draft_s = tokens = 0.0
    for sequence, count in zip(batch, drafts, strict=True):
        attention_s += costs.target.attention(1 + count, sequence.context_length)
        tokens += sum(sequence.acceptance**i for i in range(count + 1))
    for i in range(max(drafts)):
        going = [s for s, count in zip(batch, drafts, strict=True) if count > i]
        rows = len(going) + (sum(s.draft_lag for s in going) if i == 0 else 0)
        draft_s += costs.draft.predict_s(rows, [(1, s.context_length) for s in going], len(going))
    return DraftOption(
        draft_counts=np.array(drafts),
        rows=len(batch) + sum(drafts),
        attention_s=attention_s,
        draft_s=draft_s,
        expected_tokens=tokens,
    )


def candidates(batch: Sequence[SequenceView]) -> Iterator[list[int]]:
    """Every depth with every floor."""
    for depth in range(1, max(s.max_draft_tokens for s in batch) + 1):
        for floor in FLOORS:
            yield [
                sum(s.acceptance**i >= floor for i in range(1, min(depth, s.max_draft_tokens) + 1))
                for s in batch
            ]


def rate(option: DraftOption, plain_rows: int, costs: WorkerCosts, limits: DraftLimits) -> float:
    forward, hops = costs.target.forward, 2 if option.rows > plain_rows else 1
    forward_s = forward.at(option.rows + limits.other_rows)
    forward_s -= forward.at(plain_rows + limits.other_rows) - forward.at(plain_rows)
    verify_s = forward_s + costs.target.head.at(option.rows + limits.ended) + option.attention_s
    step_s = costs.target_factor * verify_s + costs.draft_factor * option.draft_s + hops * costs.hop_s
    return option.expected_tokens / step_s


def allowed(option: DraftOption, costs: WorkerCosts, limits: DraftLimits, *, slack: float = 0.0) -> bool:
    cost = costs.target
    verify_s = cost.forward.at(option.rows + limits.least_rows) + limits.least_s
    verify_s += cost.head.at(option.rows + limits.ended) + option.attention_s
    step_s = costs.target_factor * verify_s + costs.draft_factor * option.draft_s + 2 * costs.hop_s
    in_time = limits.budget_s is None or step_s <= limits.budget_s * (1 + slack)
    return in_time and option.rows + limits.least_rows <= limits.max_rows


@UNTIMED
@given(batches, costs_to_try, st.data())
def test_prices_are_the_sum_over_sequences(
    batch: list[SequenceView], costs: WorkerCosts, data: st.DataObject
) -> None:
    drafts = [data.draw(st.integers(0, sequence.max_draft_tokens)) for sequence in batch]
    pricing = DraftPricing(decode_batch(batch), costs)
    for option, counts in (
        (pricing.option(np.array(drafts)), drafts),
        (pricing.plain(), [0] * len(batch)),
    ):
        expected = price(batch, counts, costs)
        assert (option.rows, option.draft_counts.tolist()) == (expected.rows, counts)
        assert option.attention_s == pytest.approx(expected.attention_s)
        assert option.draft_s == pytest.approx(expected.draft_s)
        assert option.expected_tokens == pytest.approx(expected.expected_tokens)


@settings(deadline=None, max_examples=300)
@given(draftable, costs_to_try, limits_to_try)
def test_the_choice_is_the_best_of_all_candidates_within_the_limits(
    batch: list[SequenceView], costs: WorkerCosts, limits: DraftLimits
) -> None:
    pricing = DraftPricing(decode_batch(batch), costs)
    plain = pricing.plain()
    best = pricing.best(plain, limits)
    options = [price(batch, drafts, costs) for drafts in candidates(batch)]
    plain_rate = rate(plain, plain.rows, costs, limits)
    rates = [
        rate(option, plain.rows, costs, limits)
        for option in options
        if option.rows > plain.rows and allowed(option, costs, limits, slack=-1e-9)
    ]
    most = max((each for each in rates if each >= plain_rate * limits.gain * (1 + 1e-9)), default=plain_rate)
    chosen = rate(best, plain.rows, costs, limits)
    assert chosen >= most * (1 - 1e-9)
    if best is not plain:
        assert best.draft_counts.tolist() in [option.draft_counts.tolist() for option in options]
        assert allowed(best, costs, limits, slack=1e-9)
        assert chosen >= plain_rate * limits.gain * (1 - 1e-9)
        again = price(batch, best.draft_counts.tolist(), costs)
        assert best.attention_s == pytest.approx(again.attention_s)
        assert best.draft_s == pytest.approx(again.draft_s)
        assert best.expected_tokens == pytest.approx(again.expected_tokens)


@UNTIMED
@given(sequences.filter(lambda sequence: sequence.max_draft_tokens > 0), costs_to_try, limits_to_try)
def test_the_only_sequence_gets_the_best_of_all_lengths(
    sequence: SequenceView, costs: WorkerCosts, limits: DraftLimits
) -> None:
    options = [price([sequence], [k], costs) for k in range(1, sequence.max_draft_tokens + 1)]
    pricing = DraftPricing(decode_batch([sequence]), costs)
    plain = pricing.plain()
    plain_rate, best = rate(plain, 1, costs, limits), pricing.best(plain, limits)
    rates = [
        rate(option, 1, costs, limits) for option in options if allowed(option, costs, limits, slack=-1e-9)
    ]
    most = max((each for each in rates if each >= plain_rate * limits.gain * (1 + 1e-9)), default=plain_rate)
    assert rate(best, 1, costs, limits) >= most * (1 - 1e-9)
    assert best is plain or allowed(best, costs, limits, slack=1e-9)
