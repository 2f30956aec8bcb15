"""The books of callers, without a server."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from scheduler_service.caller_metrics import CallerMetrics
from scheduler_service.callers import Callers
from scheduler_service.spec import GenerationSpec
from spearhead.errors import QuotaExceeded
from spearhead.rpc.caller import ANONYMOUS, Caller, CallerLimits


def spec(max_tokens: int = 5, priority: int = 0) -> GenerationSpec:
    return GenerationSpec(request_id="r", prompt_token_ids=(1,), max_tokens=max_tokens, priority=priority)


def caller(**limits: float) -> Caller:
    return Caller(name="team-a", limits=CallerLimits(**limits))  # type: ignore[arg-type]


def admit(callers: Callers, who: Caller, now_s: float = 0.0, free_places: int = 9) -> QuotaExceeded | None:
    try:
        callers.admit(who, spec(), free_places=free_places, now_s=now_s)
    except QuotaExceeded as error:
        return error
    return None


def test_a_full_bucket_gives_a_minute_s_worth_at_once_and_then_an_even_stream() -> None:
    callers, who = Callers(), caller(requests_per_minute=30)
    assert [admit(callers, who) for _ in range(30)] == [None] * 30
    refused = admit(callers, who)
    assert refused is not None
    assert refused.retry_after_s == pytest.approx(2.0)
    assert "'team-a' has used up its 30 requests a minute; try again in 2.0 s" in refused.message
    assert admit(callers, who, now_s=1.9) is not None
    assert admit(callers, who, now_s=2.0) is None
    assert admit(callers, who, now_s=2.0) is not None


@given(
    rate=st.floats(0.1, 1000),
    gaps_s=st.lists(st.floats(0, 30), min_size=1, max_size=60),
)
def test_no_time_span_lets_in_more_than_the_bucket_and_its_inflow(rate: float, gaps_s: list[float]) -> None:
    callers, who, now_s, admitted = Callers(), caller(requests_per_minute=rate), 0.0, 0
    for gap_s in gaps_s:
        now_s += gap_s
        admitted += admit(callers, who, now_s) is None
        assert admitted <= max(1.0, rate) + rate * now_s / 60 + 1e-6


@given(rate=st.floats(0.1, 1000), spent=st.integers(1, 50))
def test_the_time_to_retry_is_long_enough(rate: float, spent: int) -> None:
    callers, who = Callers(), caller(requests_per_minute=rate)
    refusals = [error for _ in range(spent) if (error := admit(callers, who)) is not None]
    for error in refusals[-1:]:
        assert error.retry_after_s is not None
        assert admit(callers, who, now_s=error.retry_after_s) is None


def test_a_refused_request_costs_nothing_of_the_rate() -> None:
    callers, who = Callers(), caller(requests_per_minute=1, max_waiting=0)
    assert admit(callers, who, free_places=0) is not None
    assert admit(callers, who) is None


def test_a_rate_that_is_raised_holds_from_the_next_request_on() -> None:
    callers = Callers()
    assert admit(callers, caller(requests_per_minute=1)) is None
    assert admit(callers, caller(requests_per_minute=1), now_s=1.0) is not None
    assert admit(callers, caller(requests_per_minute=60), now_s=2.0) is None


@pytest.mark.parametrize(
    ("limits", "asked", "field"),
    [
        ({"max_output_tokens": 4}, {"max_tokens": 5}, "sampling.max_tokens"),
        ({"max_priority": -5}, {"priority": -4}, "priority"),
    ],
)
def test_asking_for_more_than_allowed_names_value_limit_and_remedy(
    limits: dict[str, float], asked: dict[str, int], field: str
) -> None:
    callers, ((name, limit),) = Callers(), limits.items()
    with pytest.raises(QuotaExceeded) as raised:
        callers.admit(caller(**limits), spec(**asked), free_places=9, now_s=0.0)
    (value,) = asked.values()
    assert raised.value.field == field
    assert f"{field} is {value}, and bearer token 'team-a' allows at most {limit}" in raised.value.message
    assert f"have {name} of the token raised" in raised.value.message
    assert callers.accounts["team-a"].refused == {name: 1}


def test_a_caller_without_a_name_has_no_books() -> None:
    callers = Callers()
    assert admit(callers, ANONYMOUS) is None
    assert callers.accounts == {}


def test_the_books_are_metrics_by_name() -> None:
    callers, registry = Callers(), CollectorRegistry()
    registry.register(CallerMetrics(callers))
    who = caller(requests_per_minute=1)
    admit(callers, who)
    admit(callers, who)
    assert registry.get_sample_value("spearhead_caller_requests_total", {"caller": "team-a"}) == 1
    refused = {"caller": "team-a", "limit": "requests_per_minute"}
    assert registry.get_sample_value("spearhead_caller_requests_refused_total", refused) == 1
    assert b'spearhead_caller_requests_waiting{caller="team-a"} 0.0' in generate_latest(registry)
