import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_service.accounting import Accounting, StepTimes, Summary
from scheduler_service.output import Finish, FinishReason

END = Finish(reason=FinishReason.STOP)


def close(accounting: Accounting, now_s: float) -> Summary:
    return accounting.summary(
        now_s,
        END,
        prompt_tokens=1,
        completion_tokens=1,
        speculation_active=False,
        speculation_inactive="no draft service",
    )


def test_every_moment_is_booked_where_it_belongs() -> None:
    accounting = Accounting(10.0)
    accounting.accepted_by_server(10.5)
    accounting.scheduled(12.0)
    accounting.prefill_step(15.0)
    accounting.committed(15.0, kept=1, drafted=0, accepted=0)
    accounting.decode_step(19.0, StepTimes(draft_s=1.0, verify_s=2.0, network_s=0.25))
    accounting.committed(19.0, kept=3, drafted=4, accepted=2)
    summary = close(accounting, 19.5)
    assert summary.queue_s == 1.5
    assert summary.prefill_s == 3.0
    assert (summary.draft_s, summary.verify_s, summary.network_s) == (1.0, 2.0, 0.25)
    assert summary.scheduler_s == 0.5 + 0.75 + 0.5
    assert summary.time_to_first_token_s == 5.0
    assert summary.e2e_s == 9.5


def test_without_a_token_there_is_no_time_to_the_first_one() -> None:
    assert close(Accounting(1.0), 2.0).time_to_first_token_s is None


def test_a_wait_after_a_preemption_is_queueing() -> None:
    accounting = Accounting(0.0)
    accounting.scheduled(1.0)
    accounting.prefill_step(2.0)
    accounting.preempted()
    accounting.scheduled(5.0)
    accounting.prefill_step(6.0)
    summary = close(accounting, 6.0)
    assert (summary.queue_s, summary.prefill_s, summary.preemptions) == (4.0, 2.0, 1)


seconds = st.floats(0, 10)
steps = st.lists(
    st.tuples(st.sampled_from(["scheduled", "prefill", "decode"]), seconds, seconds, seconds), max_size=20
)


@given(steps=steps)
def test_the_parts_add_up_to_the_whole(steps: list[tuple[str, float, float, float]]) -> None:
    accounting, now_s = Accounting(0.0), 0.0
    for kind, own_s, draft_s, verify_s in steps:
        if kind == "decode":
            now_s += own_s + draft_s + verify_s
            accounting.decode_step(now_s, StepTimes(draft_s=draft_s, verify_s=verify_s))
        else:
            now_s += own_s
            {"scheduled": accounting.scheduled, "prefill": accounting.prefill_step}[kind](now_s)
    s = close(accounting, now_s + 1.0)
    parts = s.queue_s + s.prefill_s + s.draft_s + s.verify_s + s.network_s + s.scheduler_s
    assert parts == pytest.approx(s.e2e_s, abs=1e-9)


@given(
    rounds=st.lists(
        st.tuples(st.integers(0, 8), st.integers(0, 8), st.integers(1, 9)).map(
            lambda r: (r[0], min(r[0], r[1]), min(r[2], min(r[0], r[1]) + 1))
        )
    )
)
def test_accepted_and_rounds_count_the_output(rounds: list[tuple[int, int, int]]) -> None:
    accounting = Accounting(0.0)
    for drafted, accepted, kept in rounds:
        accounting.committed(1.0, kept=kept, drafted=drafted, accepted=accepted)
    assert accounting.accepted_tokens <= accounting.drafted_tokens
    assert accounting.accepted_tokens + accounting.rounds == sum(kept for _, _, kept in rounds)


def test_a_rest_between_steps_is_waiting() -> None:
    accounting = Accounting(0.0)
    accounting.scheduled(0.0)
    accounting.prefill_step(1.0)
    accounting.rest(1.5)
    accounting.rest(2.0)  # It rests already.
    accounting.resume(4.0)
    accounting.decode_step(5.0, StepTimes(verify_s=1.0))
    accounting.rest(5.0)
    summary = close(accounting, 7.0)
    assert (summary.prefill_s, summary.queue_s, summary.verify_s, summary.scheduler_s) == (1.0, 4.5, 1.0, 0.5)
