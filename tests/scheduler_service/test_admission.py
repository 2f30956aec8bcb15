import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_service.admission import QueueLimits, WaitingQueue
from scheduler_service.request import Request
from spearhead.errors import Overloaded
from tests.scheduler_service.requests import make_request

LIMITS = QueueLimits(max_requests=2, max_tokens=10, max_pages=5, page_size=4)


def fill(*requests: Request, aging_s: float = 1.0) -> WaitingQueue:
    queue = WaitingQueue()
    for request in requests:
        queue.push(request, aging_s)
    return queue


def order(queue: WaitingQueue) -> list[int]:
    return [request.sequence_id for request in queue]


def test_equal_priorities_run_in_order_of_arrival() -> None:
    assert order(fill(make_request(2), make_request(1), make_request(3))) == [1, 2, 3]


def test_a_higher_priority_overtakes() -> None:
    assert order(fill(make_request(1), make_request(2, priority=5))) == [2, 1]


def test_age_outweighs_priority_in_the_end() -> None:
    old = make_request(1, arrival_s=0.0)
    young = make_request(2, priority=5, arrival_s=5.5)
    assert order(fill(old, young, aging_s=1.0)) == [1, 2]
    assert order(fill(old, young, aging_s=2.0)) == [2, 1]


def test_too_many_requests_are_refused_with_a_time_to_retry() -> None:
    queue = fill(make_request(1), make_request(2))
    with pytest.raises(Overloaded, match=r"2 requests wait, at most 2") as caught:
        queue.check_fits(make_request(3).spec, 0, LIMITS)
    assert caught.value.retry_after_s is not None
    assert caught.value.retry_after_s > 0


def test_free_places_in_the_batch_make_room() -> None:
    fill(make_request(1, prompt=1), make_request(2, prompt=1)).check_fits(make_request(3).spec, 1, LIMITS)


def test_too_many_tokens_are_refused() -> None:
    with pytest.raises(Overloaded, match=r"12 prompt tokens would wait, at most 10"):
        fill(make_request(1, prompt=6)).check_fits(make_request(2, prompt=6).spec, 0, LIMITS)


def test_too_many_pages_are_refused() -> None:
    limits = QueueLimits(max_requests=9, max_tokens=100, max_pages=5, page_size=4)
    with pytest.raises(Overloaded, match=r"need 6 KV pages, at most 5"):
        fill(make_request(1, prompt=10)).check_fits(make_request(2, prompt=9).spec, 0, limits)


def test_an_empty_queue_takes_any_request() -> None:
    fill().check_fits(make_request(1, prompt=1000).spec, 0, LIMITS)


def test_the_time_to_retry_grows_with_the_queue() -> None:
    def retry_after_s(count: int) -> float:
        queue = fill(*map(make_request, range(count)))
        for second in range(0, 400, 10):
            queue.observe_finish(float(second))
        with pytest.raises(Overloaded) as caught:
            queue.check_room(0, QueueLimits(max_requests=0, max_tokens=1, max_pages=1, page_size=1))
        assert caught.value.retry_after_s is not None
        return caught.value.retry_after_s

    assert 0.5 <= retry_after_s(1) < retry_after_s(4) <= retry_after_s(100) == 30.0


def test_the_time_to_retry_knows_only_ends_while_somebody_waited() -> None:
    queue = fill(make_request(1))
    queue.observe_finish(0.0)
    queue.observe_finish(2.0)
    queue.discard(queue.first())
    queue.observe_finish(1000.0)  # Nobody waited for this one.
    queue.push(make_request(2), 1.0)
    queue.observe_finish(5000.0)
    queue.observe_finish(5002.0)
    limits = QueueLimits(max_requests=0, max_tokens=1, max_pages=1, page_size=1)
    with pytest.raises(Overloaded) as caught:
        queue.check_room(0, limits)
    assert caught.value.retry_after_s == pytest.approx(1.0)


@given(st.lists(st.tuples(st.integers(-100, 100), st.floats(0, 100), st.booleans()), max_size=20))
def test_the_queue_keeps_order_and_books(entries: list[tuple[int, float, bool]]) -> None:
    requests = [
        make_request(number, priority=priority, arrival_s=arrival_s, prompt=number + 1)
        for number, (priority, arrival_s, _) in enumerate(entries)
    ]
    queue = fill(*requests)
    for request, (_, _, leaves) in zip(requests, entries, strict=True):
        assert not leaves or queue.discard(request)
        assert not leaves or not queue.discard(request)
    kept = [request for request, (_, _, leaves) in zip(requests, entries, strict=True) if not leaves]
    expected = sorted(kept, key=lambda r: (r.accounting.arrival_s - r.spec.priority, r.sequence_id))
    assert list(queue) == expected
    assert queue.token_count == sum(request.prompt_length for request in kept)
    assert len(queue) == len(kept)
