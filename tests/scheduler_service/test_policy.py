"""Plans: within every limit, right in their predictions, and never starving anybody."""

import dataclasses
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_service.latency_table import LatencyTable
from scheduler_service.policy import (
    BatchView,
    Correction,
    PlanMemory,
    PolicyConfig,
    StepPlan,
    plan,
)
from scheduler_service.step_plan import PolicyKind
from spearhead.errors import ConfigError
from tests.scheduler_service.latencies import compute_bound, memory_bound, profile
from tests.scheduler_service.views import (
    PAGE,
    SequenceView,
    batch,
    decode,
    prompt,
    sequences_of,
    without_slos,
)

UNTIMED = settings(deadline=None)  # How long an example takes is no claim of these tests.

KINDS: tuple[PolicyKind, ...] = ("table", "linear", "static")
TABLES = {"memory bound": memory_bound(), "compute bound": compute_bound()}
LEVELS = [level / 20 for level in range(21)]  # The grid to which the policy rounds acceptance.


@st.composite
def sequences(draw: st.DrawFn) -> tuple[SequenceView, ...]:
    count = draw(st.integers(0, 12))
    made = []
    for sequence_id in range(count):
        fields = {
            "itl_slo_s": draw(st.none() | st.floats(0.001, 0.2)),
            "ttft_slo_s": draw(st.none() | st.floats(0.01, 2)),
            "waited_s": draw(st.floats(0, 100)),
            "since_last_token_s": draw(st.floats(0, 0.1)),
            "priority": draw(st.integers(-100, 100)),
        }
        if draw(st.booleans()):
            drafts = {
                "max_draft_tokens": draw(st.integers(0, 16)),
                "draft_lag": draw(st.sampled_from([0, 0, 0, 1, 5, 500])),
                "acceptance": draw(st.sampled_from(LEVELS)),
            }
            made.append(decode(sequence_id, draw(st.integers(1, 5000)), **fields, **drafts))
        else:
            made.append(
                prompt(sequence_id, draw(st.integers(1, 5000)), PAGE * draw(st.integers(0, 99)), **fields)
            )
    return tuple(made)


views = st.builds(
    lambda made, draft, free_pages, max_tokens: batch(
        *made, draft=draft, free_pages=free_pages, max_tokens=max_tokens
    ),
    sequences(),
    st.booleans(),
    st.sampled_from([0, 1, 3, 20, 10_000]),
    st.sampled_from([16, 20, 100, 2048]),
)
tables = st.sampled_from(list(TABLES.values()))
configs = st.builds(PolicyConfig, kind=st.sampled_from(KINDS))
memories = st.builds(PlanMemory, drafting=st.booleans(), steps_without_prefill=st.integers(0, 6))


def rows_of(step: StepPlan) -> int:
    return sum(planned.compute_token_count + planned.draft_token_count for planned in step.sequences)


@UNTIMED
@given(views, tables, configs, memories)
def test_plan_keeps_every_limit(
    view: BatchView, table: LatencyTable, config: PolicyConfig, memory: PlanMemory
) -> None:
    step = plan(view, table, config, memory=memory)
    by_id = {sequence.sequence_id: sequence for sequence in sequences_of(view)}
    named = [*(planned.sequence_id for planned in step.sequences), *step.resting_ids]
    assert sorted(named) == sorted(by_id)
    assert step.sequence_count == len(step.sequences)
    pages = 0
    for planned in step.sequences:
        sequence = by_id[planned.sequence_id]
        computed, drafts = planned.compute_token_count, planned.draft_token_count
        assert 1 <= computed <= sequence.pending_token_count
        assert computed == sequence.pending_token_count or computed % PAGE == 0
        usable = sequence.decoding and view.draft_available and sequence.draft_lag <= config.max_draft_lag
        assert 0 <= drafts <= (sequence.max_draft_tokens if usable else 0)
        length = sequence.context_length + computed + drafts
        pages += math.ceil(length / PAGE) - math.ceil(sequence.context_length / PAGE)
    assert pages <= view.free_page_count
    assert rows_of(step) <= view.max_step_tokens
    if config.kind == "static":
        assert rows_of(step) <= config.static_step_tokens


@UNTIMED
@given(views, tables, configs, memories)
def test_decodes_come_first(
    view: BatchView, table: LatencyTable, config: PolicyConfig, memory: PlanMemory
) -> None:
    step = plan(view, table, config, memory=memory)
    decoding = {sequence.sequence_id for sequence in sequences_of(view) if sequence.decoding}
    if decoding - {planned.sequence_id for planned in step.sequences}:
        assert step.limiting in ("tokens", "pages")


def repeat_prediction(
    view: BatchView, step: StepPlan, table: LatencyTable, config: PolicyConfig
) -> tuple[float, float]:
    """Verify and draft time of a plan, one operation after the other."""
    by_id = {sequence.sequence_id: sequence for sequence in sequences_of(view)}
    target = table.target.linear_cost if config.kind == "linear" else table.target.cost
    assert table.draft
    draft = table.draft.linear_cost if config.kind == "linear" else table.draft.cost
    attention, sampled, draft_s = [], 0, 0.0
    for planned in step.sequences:
        sequence = by_id[planned.sequence_id]
        rows = planned.compute_token_count + planned.draft_token_count
        attention.append((rows, sequence.context_length))
        if sequence.decoding:
            sampled += rows
        elif planned.compute_token_count == sequence.pending_token_count:
            sampled += 1
    depth = max((planned.draft_token_count for planned in step.sequences), default=0)
    for j in range(depth):
        going = [by_id[p.sequence_id] for p in step.sequences if p.draft_token_count > j]
        lag = sum(sequence.draft_lag for sequence in going) if j == 0 else 0
        draft_s += draft.predict_s(len(going) + lag, [(1, s.context_length) for s in going], len(going))
    return target.predict_s(rows_of(step), attention, sampled), draft_s


@UNTIMED
@given(views, tables, configs, memories)
def test_prediction_is_the_table_s(
    view: BatchView, table: LatencyTable, config: PolicyConfig, memory: PlanMemory
) -> None:
    correction = Correction(target=1.5, draft=0.5)
    step = plan(view, table, config, memory=memory, correction=correction)
    if not step.sequences:
        assert step.predicted_s is None
        return
    verify_s, draft_s = repeat_prediction(view, step, table, config)
    hops = 2 if any(planned.draft_token_count for planned in step.sequences) else 1
    assert step.predicted_verify_s == pytest.approx(1.5 * verify_s)
    assert step.predicted_draft_s == pytest.approx(0.5 * draft_s)
    assert step.predicted_s == pytest.approx(1.5 * verify_s + 0.5 * draft_s + hops * config.hop_s)


@UNTIMED
@given(views, tables, configs)
def test_expected_tokens_follow_from_acceptance(
    view: BatchView, table: LatencyTable, config: PolicyConfig
) -> None:
    step = plan(view, table, config)
    by_id = {sequence.sequence_id: sequence for sequence in sequences_of(view)}
    expected = 0.0
    for planned in step.sequences:
        sequence = by_id[planned.sequence_id]
        if sequence.decoding:
            expected += sum(sequence.acceptance**i for i in range(planned.draft_token_count + 1))
        else:
            expected += planned.compute_token_count == sequence.pending_token_count
    assert step.expected_token_count == pytest.approx(expected)


@UNTIMED
@given(views, tables, st.sampled_from(["table", "linear"]), memories)
def test_what_breaks_an_slo_is_only_the_unavoidable(
    view: BatchView, table: LatencyTable, kind: PolicyKind, memory: PlanMemory
) -> None:
    config = PolicyConfig(kind=kind)
    step = plan(view, table, config, memory=memory)
    if step.predicted_s is None or step.budget_s is None or step.predicted_s <= step.budget_s * (1 + 1e-9):
        return
    by_id = {sequence.sequence_id: sequence for sequence in sequences_of(view)}
    assert not any(planned.draft_token_count for planned in step.sequences)
    chunks = [p for p in step.sequences if not by_id[p.sequence_id].decoding]
    if chunks:
        assert memory.steps_without_prefill + 1 >= config.max_steps_without_prefill
        assert [chunk.compute_token_count <= PAGE for chunk in chunks] == [True]


@UNTIMED
@given(st.integers(20, 40), st.integers(1, 4000), tables)
def test_chunk_is_the_largest_that_keeps_the_slo(slo_ms: int, pending: int, table: LatencyTable) -> None:
    slo_s = slo_ms / 1000
    view = batch(decode(1, itl_slo_s=slo_s), decode(2, 900, itl_slo_s=2 * slo_s), prompt(3, pending))
    step = plan(view, table, PolicyConfig())
    chunk = next((p.compute_token_count for p in step.sequences if p.sequence_id == 3), 0)
    assert step.predicted_s is not None
    assert step.predicted_s <= slo_s
    if chunk < pending:
        assert step.limiting == "slo"
        larger = min(chunk + PAGE, pending)
        attention = [(1, 100), (1, 900), (larger, 0)]
        too_long_s = table.predict_forward_s(2 + larger, attention, 2 + (larger == pending))
        assert too_long_s + PolicyConfig().hop_s > slo_s
    else:
        assert step.limiting == "none"


def test_without_an_slo_the_chunk_is_bounded_by_rows_alone() -> None:
    step = plan(batch(decode(1), prompt(2, 5000), max_tokens=1000), memory_bound(), PolicyConfig())
    assert step.sequences[1].compute_token_count == 999 // PAGE * PAGE
    assert step.limiting == "tokens"
    assert step.budget_s is None


def test_time_already_waited_counts_against_the_slo() -> None:
    late = decode(1, itl_slo_s=0.05, since_last_token_s=0.02)
    step = plan(batch(late, prompt(2, 5000)), memory_bound(), PolicyConfig())
    assert step.budget_s == pytest.approx(0.03)
    assert step.predicted_s is not None
    assert step.predicted_s <= 0.03


def test_slo_of_a_prompt_does_not_bind_before_its_first_token() -> None:
    step = plan(batch(decode(1), prompt(2, 500, itl_slo_s=0.001)), memory_bound(), PolicyConfig())
    assert step.budget_s is None
    assert step.sequences[1].compute_token_count == 500


def test_slower_machine_than_measured_gets_smaller_chunks() -> None:
    view = batch(decode(1, itl_slo_s=0.05), prompt(2, 5000))
    chunks = [
        plan(view, memory_bound(), PolicyConfig(), correction=Correction(target=ratio))
        .sequences[1]
        .compute_token_count
        for ratio in (1.0, 1.5, 2.0)
    ]
    assert chunks[0] > chunks[1] > chunks[2]


def rate(step: StepPlan) -> float:
    assert step.predicted_s
    return step.expected_token_count / step.predicted_s


homogeneous = st.tuples(st.integers(1, 128), st.sampled_from(LEVELS), st.integers(0, 8), st.integers(1, 4000))


@UNTIMED
@given(homogeneous, st.floats(0.02, 1.2))
def test_draft_length_is_the_best_of_all(shape: tuple[int, float, int, int], share: float) -> None:
    count, acceptance, cap, context = shape
    table = compute_bound(share)
    config = PolicyConfig(draft_margin=0)

    def planned(limit: int) -> StepPlan:
        made = [decode(i, context, max_draft_tokens=limit, acceptance=acceptance) for i in range(count)]
        return plan(batch(*made), table, config)

    step = planned(cap)
    assert table.draft
    rates = []
    for k in range(cap + 1):
        tokens = count * sum(acceptance**i for i in range(k + 1))
        verify_s = table.predict_forward_s(count * (k + 1), [(k + 1, context)] * count, count * (k + 1))
        draft_s = table.predict_draft_s([(1, context)] * count, k)
        rates.append(tokens / (verify_s + draft_s + config.hop_s * (2 if k else 1)))
    assert rate(step) == pytest.approx(max(rates))


@settings(deadline=None, max_examples=300)
@given(views, tables)
def test_drafting_never_promises_less_than_plain_decoding(view: BatchView, table: LatencyTable) -> None:
    view = dataclasses.replace(view, prompts=())
    step = plan(view, table, PolicyConfig(), memory=PlanMemory(drafting=True))
    plain = plan(dataclasses.replace(view, draft_available=False), table, PolicyConfig())
    if step.sequences:
        assert rate(step) >= rate(plain) * (1 - 1e-9)


def test_free_rows_are_used_for_drafts_and_dear_ones_are_not() -> None:
    few = [decode(i, max_draft_tokens=8, acceptance=0.8) for i in range(4)]
    many = [decode(i, max_draft_tokens=8, acceptance=0.2) for i in range(128)]
    assert all(p.draft_token_count >= 4 for p in plan(batch(*few), memory_bound(), PolicyConfig()).sequences)
    assert not any(p.draft_token_count for p in plan(batch(*many), memory_bound(), PolicyConfig()).sequences)


def test_only_sequences_whose_drafts_pay_get_them() -> None:
    good, bad = range(16), range(16, 32)
    sequences = [decode(i, max_draft_tokens=8, acceptance=0.95 if i in good else 0.2) for i in range(32)]
    table = LatencyTable(target=profile(row_us=1000, base_us=20_000), draft=profile(row_us=20))
    step = plan(batch(*sequences), table, PolicyConfig())
    counts = {planned.sequence_id: planned.draft_token_count for planned in step.sequences}
    assert all(counts[i] > 0 for i in good)
    assert all(counts[i] == 0 for i in bad)


def test_drafts_that_the_slo_forbids_are_not_planned() -> None:
    def drafts(slo_s: float | None) -> int:
        view = batch(decode(1, max_draft_tokens=8, acceptance=0.95, itl_slo_s=slo_s))
        return plan(view, memory_bound(), PolicyConfig()).sequences[0].draft_token_count

    assert drafts(None) == 8
    assert 0 < drafts(0.0125) < 8
    assert drafts(0.009) == 0


def test_drafting_starts_only_with_a_margin_and_then_holds() -> None:
    config = PolicyConfig(draft_margin=0.5)
    view = batch(decode(1, max_draft_tokens=1, acceptance=0.4))
    plain_rate = rate(plan(dataclasses.replace(view, draft_available=False), memory_bound(), config))
    off = plan(view, memory_bound(), config)
    on = plan(view, memory_bound(), config, memory=PlanMemory(drafting=True))
    assert not off.memory.drafting
    assert off.sequences[0].draft_token_count == 0
    assert on.memory.drafting
    assert on.sequences[0].draft_token_count == 1
    assert plain_rate < rate(on) < 1.5 * plain_rate


def test_drafting_is_remembered_through_a_step_without_decodes() -> None:
    step = plan(batch(prompt(1, 5)), memory_bound(), PolicyConfig(), memory=PlanMemory(drafting=True))
    assert step.memory.drafting


def test_table_without_draft_measurements_drafts_nothing() -> None:
    table = LatencyTable(target=memory_bound().target)
    step = plan(batch(decode(1, max_draft_tokens=8, acceptance=0.9)), table, PolicyConfig())
    assert step.sequences[0].draft_token_count == 0


def test_drafts_leave_room_for_the_least_progress_of_a_prompt() -> None:
    sequences = [decode(i, max_draft_tokens=8, acceptance=1.0) for i in range(8)]
    step = plan(batch(*sequences, prompt(9, 500), max_tokens=64), memory_bound(), PolicyConfig())
    assert any(planned.sequence_id == 9 for planned in step.sequences)


def test_hopeless_slo_lets_prompts_through_now_and_then() -> None:
    config = PolicyConfig(max_steps_without_prefill=4, min_prefill_tokens=32)
    view = batch(decode(1, itl_slo_s=0.001), prompt(2, 5000))
    memory, chunks = PlanMemory(), []
    for _ in range(12):
        step = plan(view, memory_bound(), config, memory=memory)
        memory = step.memory
        chunks.append(sum(p.compute_token_count for p in step.sequences if p.sequence_id == 2))
        assert step.limiting == "slo"
    assert chunks == [0, 0, 0, 32] * 3


def test_decodes_that_fill_every_row_let_prompts_through_now_and_then() -> None:
    view = batch(*(decode(i) for i in range(64)), prompt(99, 500), max_tokens=64)
    memory, progress = PlanMemory(), 0
    for _ in range(8):
        step = plan(view, memory_bound(), PolicyConfig(), memory=memory)
        memory = step.memory
        progress += sum(p.compute_token_count for p in step.sequences if p.sequence_id == 99)
    assert progress == 2 * PAGE


def test_rows_go_to_the_decodes_that_waited_longest() -> None:
    waiting = [0.0, 0.5, 0.1, 0.4]
    view = batch(*(decode(i, since_last_token_s=s) for i, s in enumerate(waiting)), max_tokens=2)
    step = plan(view, memory_bound(), PolicyConfig())
    assert [planned.sequence_id for planned in step.sequences] == [1, 3]
    assert step.limiting == "tokens"


def test_without_pages_the_decodes_that_fit_go_on_in_order_of_admission() -> None:
    view = batch(decode(1, 32), decode(2, 33), decode(3, 64), decode(4, 100), prompt(5, 50), free_pages=1)
    step = plan(view, memory_bound(), PolicyConfig())
    assert [planned.sequence_id for planned in step.sequences] == [1, 2, 4]
    assert step.limiting == "pages"


def test_prompt_without_a_page_calls_for_a_preemption() -> None:
    step = plan(batch(prompt(1, 50), free_pages=0), memory_bound(), PolicyConfig())
    assert step.sequences == ()
    assert step.limiting == "pages"


def test_drafts_that_need_too_many_pages_stay_within_the_page() -> None:
    sequences = [decode(i, 30, max_draft_tokens=8, acceptance=1.0) for i in range(4)]
    step = plan(batch(*sequences, free_pages=2), memory_bound(), PolicyConfig())
    assert [planned.draft_token_count for planned in step.sequences] == [1, 1, 1, 1]


def test_urgent_prompts_come_first_and_equals_in_order() -> None:
    view = batch(
        prompt(1, 10), prompt(2, 10, priority=5), prompt(3, 10, waited_s=3.0),
        prompt(4, 10), prompt(5, 10, waited_s=0.1, ttft_slo_s=0.1),
    )  # fmt: skip
    step = plan(view, memory_bound(), PolicyConfig())
    assert [planned.sequence_id for planned in step.sequences] == [5, 2, 3, 1, 4]


def test_several_prompts_share_a_step() -> None:
    step = plan(
        batch(prompt(1, 50), prompt(2, 70), prompt(3, 900), max_tokens=200), memory_bound(), PolicyConfig()
    )
    assert [tuple(planned) for planned in step.sequences] == [(1, 50, 0), (2, 70, 0), (3, 80, 0)]


@UNTIMED
@given(st.integers(-100, 100), st.floats(0.001, 10), st.sampled_from(KINDS))
def test_no_prompt_starves_behind_newcomers(priority: int, ttft_slo_s: float, kind: PolicyKind) -> None:
    # Newcomers of the highest priority, each as long as a step: without aging the first prompt never runs.
    # It gains a point a second; priorities and TTFT SLO make at most 210 of difference.
    config = PolicyConfig(kind=kind, static_step_tokens=64)
    memory = PlanMemory()
    for second in range(213):
        newcomer = prompt(1, 64, priority=100, waited_s=1.0, ttft_slo_s=ttft_slo_s)
        view = batch(newcomer, prompt(0, 64, priority=priority, waited_s=float(second)), max_tokens=64)
        step = plan(view, memory_bound(), config, memory=memory)
        memory = step.memory
        if step.sequences[0].sequence_id == 0:
            return
    pytest.fail(f"a prompt of priority {priority} waited {second} s")


@UNTIMED
@given(views, configs)
def test_static_needs_no_table_and_plans_the_same_without(view: BatchView, config: PolicyConfig) -> None:
    config = dataclasses.replace(config, kind="static")
    step = plan(view, None, config)
    assert step.predicted_s is step.predicted_draft_s is step.budget_s is None
    assert step.sequences == plan(without_slos(view), memory_bound(), config).sequences


def test_static_gives_fixed_drafts_and_the_rest_of_its_budget() -> None:
    config = PolicyConfig(kind="static", static_step_tokens=256, static_draft_tokens=3)
    step = plan(
        batch(decode(1, max_draft_tokens=8), decode(2, max_draft_tokens=2), prompt(3, 900)), None, config
    )
    assert [tuple(planned) for planned in step.sequences] == [(1, 1, 3), (2, 1, 2), (3, 240, 0)]


def test_static_keeps_an_slo_where_there_is_a_table() -> None:
    view = batch(*(decode(i, itl_slo_s=0.016) for i in range(8)), prompt(9, 4000))
    kept = plan(view, memory_bound(), PolicyConfig(kind="static"))
    blind = plan(view, None, PolicyConfig(kind="static"))
    assert kept.predicted_s is not None
    assert kept.predicted_s <= 0.016
    assert 0 < kept.sequences[-1].compute_token_count < blind.sequences[-1].compute_token_count


def test_static_gives_fewer_drafts_where_an_slo_leaves_no_time() -> None:
    def drafts(itl_slo_s: float | None) -> int:
        view = batch(decode(1, max_draft_tokens=8, itl_slo_s=itl_slo_s))
        config = PolicyConfig(kind="static", static_draft_tokens=4)
        return plan(view, compute_bound(), config).sequences[0].draft_token_count

    assert drafts(None) == 4
    assert [drafts(slo_s) for slo_s in (1.0, 0.005, 0.0001)] == [4, 1, 0]


@pytest.mark.parametrize("kind", ["table", "linear"])
def test_policy_without_its_table_is_refused_with_a_remedy(kind: PolicyKind) -> None:
    with pytest.raises(ConfigError, match=rf"'{kind}'.*no latency table.*spearhead profile"):
        plan(batch(decode(1)), None, PolicyConfig(kind=kind))


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_running_gives_an_empty_plan(kind: PolicyKind) -> None:
    step = plan(batch(), memory_bound(), PolicyConfig(kind=kind))
    assert step.sequences == ()
    assert step.expected_token_count == 0
    assert step.limiting == "none"


@UNTIMED
@given(views, tables, configs, memories)
def test_same_view_gives_the_same_plan(
    view: BatchView, table: LatencyTable, config: PolicyConfig, memory: PlanMemory
) -> None:
    assert plan(view, table, config, memory=memory) == plan(view, table, config, memory=memory)


@pytest.mark.parametrize(("name", "value"), [
    ("static_step_tokens", 0), ("static_draft_tokens", -1), ("static_draft_tokens", 17),
    ("min_prefill_tokens", 0), ("max_steps_without_prefill", 0), ("draft_margin", -0.1),
    ("draft_margin", math.nan), ("max_draft_lag", -1), ("aging_s", 0.0), ("hop_s", -1.0),
])  # fmt: skip
def test_configuration_out_of_range_is_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        PolicyConfig(**{name: value})  # type: ignore[arg-type]
