import numpy as np
import pytest

from scheduler_service.acceptance import AcceptanceConfig, AcceptanceTracker
from scheduler_service.batch import Batch, ReleaseList
from scheduler_service.request import Request, WorkerSequence
from scheduler_service.requests import Requests
from spearhead.errors import RequestExists
from tests.scheduler_service.requests import make_request


def held(session: int) -> WorkerSequence:
    sequence = WorkerSequence()
    sequence.attach(session)
    sequence.held = True
    return sequence


def books_of(*requests: Request, running: int = 0) -> tuple[Requests, Batch]:
    books = Requests()
    batch = Batch(books.roster, AcceptanceTracker(AcceptanceConfig()))
    for request in requests:
        books.add(request, 1.0)
    for request in requests[:running]:
        books.start(request, batch)
    return books, batch


def check(books: Requests, *batches: Batch) -> None:
    books.check_integrity([request for batch in batches for request in batch.running])
    for batch in batches:
        batch.check_integrity()


def test_only_what_a_worker_holds_is_released_and_only_once() -> None:
    releases = ReleaseList()
    releases.add(WorkerSequence(), 1)
    sequence = held(session=3)
    releases.add(sequence, 2)
    releases.add(sequence, 2)
    assert releases.pending(3)
    assert releases.take(3) == [2]
    assert not releases.pending(3)


def test_a_new_connection_has_nothing_to_release() -> None:
    releases = ReleaseList()
    releases.add(held(session=3), 1)
    assert not releases.pending(4)
    assert releases.take(4) == []


def test_a_sequence_starts_over_on_a_new_connection() -> None:
    sequence = held(session=1)
    epoch, sequence.computed_length = sequence.epoch, 17
    sequence.attach(1)
    assert (sequence.computed_length, sequence.epoch, sequence.held) == (17, epoch, True)
    sequence.attach(2)
    assert (sequence.computed_length, sequence.epoch, sequence.held) == (0, epoch + 1, False)


def test_a_request_id_is_taken_until_its_request_ends() -> None:
    first, second = make_request(1), make_request(1)
    books, batch = books_of(first)
    with pytest.raises(RequestExists, match="'1'"):
        books.add(second, 1.0)
    books.remove(first)
    books.add(second, 1.0)
    check(books, batch)


def test_a_preempted_request_waits_with_a_new_epoch_and_frees_its_pages() -> None:
    request = make_request(1)
    books, batch = books_of(request, make_request(2), running=1)
    for sequence in (request.verify, request.draft):
        sequence.attach(1)
        sequence.held, sequence.computed_length = True, 3
    epoch = request.verify.epoch
    books.put_back(request, 1.0)
    assert (batch.running, books.waiting.first()) == ((), request)
    assert (request.verify.epoch, request.verify.computed_length) == (epoch + 1, 0)
    assert batch.verify_releases.take(1) == batch.draft_releases.take(1) == [1]
    check(books, batch)


def test_the_newest_of_the_lowest_priority_is_preempted() -> None:
    requests = [make_request(1, priority=0), make_request(2, priority=5), make_request(3, priority=0)]
    _, batch = books_of(*requests, running=3)
    assert batch.preemption_victim() is requests[2]


def test_the_only_running_request_is_never_preempted() -> None:
    assert books_of(make_request(1), make_request(2), running=1)[1].preemption_victim() is None
    assert books_of(make_request(1))[1].preemption_victim() is None


def test_removing_a_request_empties_every_place() -> None:
    requests = [make_request(n) for n in range(4)]
    books, batch = books_of(*requests, running=2)
    for request in requests:
        books.remove(request)
        check(books, batch)
        assert request.ended
    assert (len(books.waiting), batch.running_count, list(books)) == (0, 0, [])


def decoding(number: int, output: int, **fields: int) -> Request:
    request = make_request(number, max_tokens=20, **fields)
    request.token_ids += [1] * output
    request.verify.computed_length = len(request.token_ids) - 1
    return request


def test_who_decodes_is_told_in_columns_in_order_of_admission() -> None:
    requests = [decoding(number, output=1, prompt=number) for number in range(1, 6)]
    books, batch = books_of(*requests, running=5)
    for request in requests:
        request.draft.computed_length = request.sequence_id
        books.commit(request, [1] * 2, request.sequence_id / 2)
        request.verify.computed_length += 2
    books.put_back(requests[0], 1.0)
    books.remove(requests[2])
    books.start(requests[0], batch)
    columns, prompts = batch.split()
    assert prompts == [requests[0]]
    assert columns.sequence_ids.tolist() == [2, 4, 5]
    assert columns.lengths.tolist() == [5, 7, 8]
    assert columns.max_lengths.tolist() == [22, 24, 25]
    assert columns.target_lengths.tolist() == [4, 6, 7]
    assert columns.draft_lengths.tolist() == [2, 4, 5]
    assert columns.last_token_s.tolist() == [1.0, 2.0, 2.5]
    check(books, batch)


@pytest.mark.parametrize(("output", "computed"), [(0, 0), (0, 2), (1, 2), (2, 3)])
def test_a_request_with_more_to_compute_does_not_decode(output: int, computed: int) -> None:
    request = make_request(1, prompt=3, max_tokens=20)
    books, batch = books_of(request, running=1)
    books.commit(request, [1] * output, 0.5)
    request.verify.computed_length = computed
    columns, prompts = batch.split()
    assert (len(columns.rows), prompts, request.decoding) == (0, [request], False)


def test_a_row_that_became_free_says_nothing_of_who_had_it() -> None:
    old, new = decoding(1, output=1), decoding(2, output=3)
    books, batch = books_of(old, running=1)
    books.commit(old, [1], 0.5)
    books.refuse_drafts(old)
    books.remove(old)
    books.add(new, 1.0)
    books.start(new, batch)
    columns, _ = batch.split()
    assert (columns.lengths.tolist(), columns.target_lengths.tolist()) == ([6], [5])
    assert (columns.draft_caps.tolist(), np.isnan(columns.last_token_s).tolist()) == ([16], [True])
    old.verify.computed_length = 77
    assert (old.verify.computed_length, new.verify.computed_length) == (77, 5)


def test_columns_stay_as_they_were() -> None:
    request = decoding(1, output=1)
    books, batch = books_of(request, running=1)
    columns, _ = batch.split()
    books.commit(request, [1, 2], 0.5)
    assert (columns.lengths.tolist(), len(request.token_ids)) == ([4], 6)
