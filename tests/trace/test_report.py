import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spearhead.errors import ConfigError
from spearhead.telemetry import STEPS_PER_ENGINE
from spearhead.trace.causes import Gap, Objectives
from spearhead.trace.records import Round
from spearhead.trace.report import build_report
from spearhead.trace.spans import read_traces
from spearhead.trace.tiles import Cause, OthersPrompts, Tiles
from tests.trace.conftest import MS, Story

MINE = {"a": ("decode", 1)}
ROUNDS, ODD = 20, 12


def run(story, *, odd=None, before_odd=0.0, odd_round=None, **request):
    """Twenty steps of one request, of which number ``ODD`` is odd; a first step is its prompt."""
    now = story.step(0, 1.0, members={"a": ("prefill", 40)}, draft=0.0, prefill=40)
    story.round("a", 0, now, drafted=0, accepted=0, emitted=1)
    for number in range(1, ROUNDS + 1):
        now += before_odd if number == ODD else 0.0
        now = story.step(number, now, **({"members": MINE} | ((odd or {}) if number == ODD else {})))
        story.round("a", number, now, **((odd_round or {}) if number == ODD else {}))
    story.request("a", 0.0, now, **request)
    return now


def only_late(traces, story, **options):
    (token,) = [token for token in build_report(traces(story), **options).late if token.gap.index]
    return token


def times_of_odd():
    """Start and end of the odd step in a run without anything odd: every step takes 11.4 ms."""
    first = 1.0 + 8.9
    return first + (ODD - 1) * 11.4, first + ODD * 11.4


@pytest.mark.parametrize(
    ("odd", "cause"),
    [
        ({"draft": 30.0}, Cause.DRAFT),
        ({"verify": 45.0}, Cause.VERIFY),
        ({"network": 14.0}, Cause.NETWORK),
        ({"overhead": 15.0}, Cause.SCHEDULER),
        (
            {"members": {"a": ("decode", 1), "b": ("prefill", 700)}, "prefill": 700, "verify": 40.0},
            Cause.PREFILL_OF_OTHERS,
        ),
    ],
)
def test_a_slow_part_of_a_step_is_named(story, traces, odd, cause):
    run(story, odd=odd)
    token = only_late(traces, story)
    assert (token.cause, token.gap.round.step_id) == (cause, ODD)


def test_whose_prompt_delayed_a_token_is_named(story, traces):
    members = {"a": ("decode", 1), "b": ("prefill", 700)}
    run(story, odd={"members": members, "prefill": 1000, "verify": 40.0})
    note = only_late(traces, story).note
    assert "b (700 tokens)" in note
    assert "not recorded (300 tokens)" in note


def test_a_step_without_the_request_is_time_of_others(story, traces):
    now = story.step(0, 1.0, members={"a": ("prefill", 40)}, draft=0.0, prefill=40)
    story.round("a", 0, now, drafted=0, accepted=0, emitted=1)
    for number in range(1, ROUNDS):
        if number == ODD:
            now = story.step(number, now, members={"b": ("prefill", 512)}, prefill=512, draft=0.0)
        else:
            now = story.step(number, now, members=MINE)
            story.round("a", number, now)
    story.request("a", 0.0, now)
    token = only_late(traces, story)
    assert token.cause is Cause.PREFILL_OF_OTHERS
    assert "b (512 tokens)" in token.note


def test_prompts_of_several_steps_in_one_gap_are_added_up(story, traces):
    now = story.step(0, 1.0, members={"a": ("prefill", 40)}, draft=0.0, prefill=40)
    story.round("a", 0, now, drafted=0, accepted=0, emitted=1)
    for number in range(1, ROUNDS):
        if number == ODD:
            now = story.step(number, now, members={"b": ("prefill", 512)}, prefill=512, draft=0.0)
        elif number == ODD + 1:
            both = {"b": ("prefill", 512), "c": ("prefill", 8)}
            now = story.step(number, now, members=both, prefill=820, draft=0.0)
        elif number == ODD + 2:
            mixed = MINE | {"c": ("prefill", 92)}
            now = story.step(number, now, members=mixed, prefill=92, verify=9.0)
            story.round("a", number, now)
        else:
            now = story.step(number, now, members=MINE)
            story.round("a", number, now)
    story.request("a", 0.0, now)
    token = only_late(traces, story)
    assert token.cause is Cause.PREFILL_OF_OTHERS
    assert token.note == (
        "b (1024 tokens), c (100 tokens), requests that are not recorded (300 tokens) in 3 steps"
    )


def test_a_step_in_several_tiles_is_counted_once():
    tiles = Tiles(0, 100)
    tiles.paint(0, 60, Cause.PREFILL_OF_OTHERS, "b (5 tokens)", OthersPrompts(step_id=1, tokens={"b": 5}))
    tiles.paint(20, 30, Cause.WORKER_STALL, "stood still")
    gap = Gap(
        index=1,
        token_index=1,
        round=Round(step_id=1, emit_ns=100, drafted=0, accepted=0, emitted=1),
        start_ns=0,
        end_ns=100,
        tiles=tuple(tiles),
        last=False,
    )
    assert [tile.cause for tile in gap.tiles].count(Cause.PREFILL_OF_OTHERS) == 2
    assert gap.note(Cause.PREFILL_OF_OTHERS) == "b (5 tokens)"


def test_time_between_two_steps_is_the_schedulers(story, traces):
    run(story, before_odd=35.0)
    assert only_late(traces, story).cause is Cause.SCHEDULER


def test_steps_that_are_not_recorded_are_not_blamed_on_anybody(story, traces):
    now = story.step(0, 1.0, members=MINE, draft=0.0)
    story.round("a", 0, now, drafted=0, accepted=0, emitted=1)
    for number in range(1, ROUNDS):
        shown = number + 5 if number >= ODD else number
        now = story.step(shown, now + (60.0 if number == ODD else 0.0), members=MINE)
        story.round("a", shown, now)
    story.request("a", 0.0, now)
    token = only_late(traces, story)
    assert token.cause is Cause.UNATTRIBUTED
    assert token.note == "5 steps are not recorded"


def test_rejected_drafts_are_named_although_the_gap_is_as_usual(story, traces):
    run(story, odd_round={"accepted": 0, "emitted": 1})
    token = only_late(traces, story)
    assert token.cause is Cause.REJECTION
    assert token.note == "0 of 3 drafts accepted"
    assert token.excess_ns == pytest.approx(0.75 * 11.4 * MS, rel=1e-3)


def test_missing_drafts_are_the_drafters_fault(story, traces):
    run(story, odd_round={"drafted": 0, "accepted": 0, "emitted": 1})
    assert only_late(traces, story).cause is Cause.DRAFT


def test_a_last_round_that_the_end_cuts_is_not_late(story, traces):
    now = story.step(0, 1.0, members=MINE, draft=0.0)
    story.round("a", 0, now, drafted=0, accepted=0, emitted=1)
    for number in range(1, ROUNDS):
        now = story.step(number, now, members=MINE)
        cut = {"emitted": 1, "accepted": 0} if number == ROUNDS - 1 else {}
        story.round("a", number, now, **cut)
    story.request("a", 0.0, now)
    assert [token for token in build_report(traces(story)).late if token.gap.index] == []


def test_a_second_wait_after_a_preemption_is_named_so(story, traces):
    start, _ = times_of_odd()
    events = (("preempted", start + 0.1, {}),)
    run(
        story,
        before_odd=80.0,
        waits=((0.0, 1.0, "slots"), (start + 0.2, start + 79.0, "kv_blocks")),
        events=events,
    )
    assert only_late(traces, story).cause is Cause.PREEMPTION


def test_a_lost_worker_is_named_with_all_that_its_return_costs(story, traces):
    now = story.step(0, 1.0, members=MINE, draft=0.0)
    story.round("a", 0, now, drafted=0, accepted=0, emitted=1)
    for number in range(1, ROUNDS):
        if number == ODD:
            lost = now
            now = story.step(100, now, members=MINE, error="verify service is lost") + 300.0
            now = story.step(101, now, members={"a": ("prefill", 90)}, prefill=90, verify=30.0)
            story.round("a", 101, now)
        else:
            now = story.step(number, now, members=MINE)
            story.round("a", number, now)
    story.request("a", 0.0, now, events=(("worker_lost", lost + 5.0, {}),))
    token = only_late(traces, story)
    assert token.cause is Cause.WORKER_RESTART
    assert token.gap.parts[Cause.WORKER_RESTART] > 0.95 * token.gap.duration_ns


def test_steps_of_another_engine_explain_nothing(story, traces):
    run(story, odd={"verify": 45.0})
    start, _ = times_of_odd()
    other = STEPS_PER_ENGINE + 1
    for number in range(4):
        members = {"b": ("prefill", 700)}
        story.step(other + number, start + 11.0 * number, members=members, prefill=700, verify=10.0)
    assert only_late(traces, story).cause == Cause.VERIFY


def test_a_request_that_moved_to_another_engine_waited_for_a_worker(story, traces):
    now = story.step(1, 0.0, members={"a": ("prefill", 40)}, draft=0.0, prefill=40)
    story.round("a", 1, now, drafted=0, accepted=0, emitted=1)
    lost = now + 20.0
    story.step(2, now, members=MINE, verify=19.0, error="it is lost")
    moved = lost + 130.0
    for number in range(1, ROUNDS + 1):
        role = ("prefill", 41) if number == 1 else ("decode", 1)
        end = story.step(STEPS_PER_ENGINE + number, moved, members={"a": role}, prefill=role[1] % 2 * role[1])
        story.round("a", STEPS_PER_ENGINE + number, end)
        moved = end
    story.request(
        "a", 0.0, moved, waits=((now, lost + 130.0, "worker_lost"),), events=(("worker_lost", lost, {}),)
    )
    token = only_late(traces, story)
    assert token.cause == Cause.WORKER_RESTART
    parts = token.gap.parts
    assert parts[Cause.WORKER_RESTART] > 150 * MS
    assert Cause.UNATTRIBUTED not in parts


@pytest.mark.parametrize(
    ("service", "cause"), [("verify", Cause.WORKER_STALL), ("scheduler", Cause.SCHEDULER)]
)
def test_a_process_that_stood_still_is_not_taken_for_the_network(story, traces, service, cause):
    run(story, odd={"network": 300.0})
    start, _ = times_of_odd()
    middle = start + 0.2 + 302.0 + 10.0  # within the verify call
    story.stall(service, middle, middle + 280.0)
    token = only_late(traces, story)
    assert token.gap.parts[cause] == pytest.approx(280.0 * MS, rel=0.02)


def test_a_worker_that_was_busy_all_the_while_did_not_stand_still(story, traces):
    run(story, odd={"network": 300.0, "draft": 0.0})
    start, _ = times_of_odd()
    story.stall("verify", start + 10.0, start + 250.0, cpu_ms=230.0)
    assert only_late(traces, story).cause is Cause.VERIFY


def test_outputs_behind_one_that_the_client_did_not_take_are_late_for_that(story, traces):
    _, end = times_of_odd()
    blocked = {"spearhead.client.blocked_ns": round(40 * MS)}
    run(story, events=(("client_slow", end - 1.0, blocked),))
    token = only_late(traces, story)
    assert token.cause is Cause.SLOW_READER
    assert token.gap.end_ns - token.gap.start_ns == pytest.approx((11.4 + 39.0) * MS, rel=1e-3)


def test_a_first_token_that_queued_is_late_for_that(story, traces):
    now = story.step(0, 200.0, members={"a": ("prefill", 40)}, draft=0.0, prefill=40)
    story.round("a", 0, now, drafted=0, accepted=0, emitted=1)
    story.request("a", 0.0, now, waits=((0.5, 200.0, "slots"),))
    (token,) = build_report(traces(story)).late
    assert (token.cause, token.gap.index, token.note) == (Cause.QUEUE, 0, "waited for slots")


def test_an_objective_replaces_the_comparison(story, traces):
    run(story, odd={"verify": 12.0})
    assert only_late(traces, story, objectives=Objectives(itl_ns=15 * MS)).cause is Cause.VERIFY
    late = build_report(traces(story), objectives=Objectives(itl_ns=50 * MS)).late
    assert [token for token in late if token.gap.index] == []


def test_the_parts_of_every_gap_add_up_to_it(story, traces):
    run(story, odd={"verify": 45.0, "network": 7.0}, before_odd=3.0)
    (request,) = build_report(traces(story)).requests
    assert len(request.gaps) == ROUNDS + 1
    for gap in request.gaps:
        assert sum(gap.parts.values()) == gap.duration_ns
        assert Cause.UNATTRIBUTED not in gap.parts


@settings(max_examples=40, deadline=None)
@given(
    steps=st.lists(
        st.tuples(
            st.floats(0, 50),
            st.floats(0.1, 20),
            st.floats(0, 20),
            st.floats(0, 5),
            st.floats(0, 2),
            st.booleans(),
        ),
        min_size=1,
        max_size=12,
    ),
    stalls=st.lists(st.tuples(st.floats(0, 300), st.floats(0, 100)), max_size=4),
    blocks=st.lists(st.tuples(st.floats(0, 300), st.floats(25, 100)), max_size=4),
)
def test_parts_add_up_whatever_happened(tmp_path_factory, steps, stalls, blocks):
    story, now = Story(), 1.0
    for number, (pause, verify, draft, network, overhead, foreign) in enumerate(steps):
        members = {"b": ("prefill", 9)} if foreign else MINE
        now = story.step(
            number, now + pause, members=members, prefill=9 if foreign else 0, verify=verify, draft=draft,
            network=network, overhead=overhead,
        )  # fmt: skip
        if not foreign:
            story.round("a", number, now)
    for start, length in stalls:
        story.stall("verify", start, start + length)
        story.stall("scheduler", start, start + length)
    events = tuple(("client_slow", at, {"spearhead.client.blocked_ns": round(ms * MS)}) for at, ms in blocks)
    story.request("a", 0.0, now, waits=((0.0, 1.0, "slots"),), events=events)
    report = build_report(read_traces(story.write(tmp_path_factory.mktemp("story"))))
    (request,) = report.requests
    for gap in request.gaps:
        assert sum(gap.parts.values()) == gap.duration_ns >= 0


def test_a_request_that_still_runs_is_found_by_its_steps(story, traces):
    run(story, finished=False)
    report = build_report(traces(story))
    assert [request.request.request_id for request in report.requests] == ["a"]
    assert "1 requests have no span of their own" in report.warnings[0]


def test_without_the_workers_files_the_scheduler_knows_their_time_and_the_report_says_so(story, tmp_path):
    run(story, odd={"draft": 30.0})
    report = build_report(read_traces(story.write(tmp_path)[:1]))
    assert [t.cause for t in report.late if t.gap.index] == [Cause.DRAFT]
    assert any("verify service" in warning for warning in report.warnings)


def test_a_report_on_an_unknown_request_names_those_that_exist(story, traces):
    run(story)
    with pytest.raises(ConfigError, match=r"no request 'x'.* are: a"):
        build_report(traces(story), request_id="x")


def test_a_prompt_that_is_computed_again_since_it_was_forgotten_says_so(story, traces):
    start, _ = times_of_odd()
    odd = {"members": {"a": ("prefill", 90)}, "prefill": 90, "verify": 60.0}
    run(story, odd=odd, events=(("kv_evicted", start + 0.1, {}),))
    token = only_late(traces, story)
    assert token.cause is Cause.OWN_PREFILL
    assert "had forgotten it" in token.note
