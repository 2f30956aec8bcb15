"""What the draft side says of each running request."""

import pytest
from prometheus_client import CollectorRegistry

from scheduler_service.acceptance import AcceptanceConfig, AcceptanceTracker
from scheduler_service.batch import Batch, ReleaseList
from scheduler_service.config import LimitsSection
from scheduler_service.draft_patience import DraftPatience
from scheduler_service.drafting import Drafting
from scheduler_service.links import LinkFactory
from scheduler_service.metrics import SchedulerMetrics
from scheduler_service.request import Request
from scheduler_service.requests import Requests
from scheduler_service.worker_link import LinkState
from spearhead.rpc import TargetConfig
from tests.scheduler_service.requests import make_request


def drafting(*, ready: bool = True) -> Drafting:
    metrics = SchedulerMetrics(CollectorRegistry())
    links = LinkFactory(LimitsSection(), "", None, metrics, on_change=lambda: None)
    link = links.draft(lambda: TargetConfig(address="unix:/nowhere"))
    link.session = 1
    link.state = LinkState.READY if ready else LinkState.LOST
    return Drafting(link, ReleaseList(), metrics, vocab_size=10, patience=DraftPatience(1.0, 3))


def running(*requests: Request, output: int = 1) -> Batch:
    books = Requests()
    batch = Batch(books.roster, AcceptanceTracker(AcceptanceConfig()))
    for request in requests:
        books.add(request, 1.0)
        books.start(request, batch)
        books.commit(request, [1] * output, 1.0)
        request.verify.computed_length = len(request.token_ids) - 1
    return batch


def prospects(side: Drafting, batch: Batch, limit: int = 8) -> list[tuple[int, int]]:
    decoding, _ = batch.split()
    caps, lags = side.prospects(decoding, limit)
    return list(zip(caps.tolist(), lags.tolist(), strict=True))


@pytest.mark.parametrize(
    ("own", "server", "output", "cap"),
    [(None, 8, 1, 8), (3, 8, 1, 3), (16, 8, 1, 8), (0, 8, 1, 0), (None, 8, 15, 4), (None, 8, 19, 0)],
)
def test_drafts_leave_room_for_the_targets_own_token(
    own: int | None, server: int, output: int, cap: int
) -> None:
    request = make_request(1, max_tokens=20, max_draft_tokens=own)
    batch = running(request, output=output)
    assert prospects(drafting(), batch, server) == [(cap, request.prompt_length + output - 1)]


def test_a_request_whose_drafts_were_refused_gets_no_more() -> None:
    request = make_request(1, max_tokens=20)
    books = Requests()
    batch = Batch(books.roster, AcceptanceTracker(AcceptanceConfig()))
    books.add(request, 1.0)
    books.start(request, batch)
    books.commit(request, [1], 1.0)
    request.verify.computed_length = 3
    books.refuse_drafts(request)
    assert prospects(drafting(), batch) == [(0, 3)]


def test_without_the_drafter_nobody_gets_drafts() -> None:
    assert prospects(drafting(ready=False), running(make_request(1, max_tokens=20))) == [(0, 3)]


def test_prospects_agree_with_what_is_asked_one_by_one() -> None:
    side, requests = drafting(), [make_request(number, max_tokens=20) for number in range(1, 5)]
    batch = running(*requests)
    side.begin_step(1, requests)
    requests[1].draft.computed_length = 3
    requests[2].draft.computed_length = 1
    assert prospects(side, batch) == [(8, side.lag(request)) for request in requests]
    assert all(side.can_draft_for(request) for request in requests)


def test_what_an_older_connection_computed_counts_for_nothing() -> None:
    side, request = drafting(), make_request(1, max_tokens=20)
    batch = running(request)
    request.draft.attach(7)
    request.draft.computed_length = 3
    side.begin_step(1, [request])
    assert prospects(side, batch) == [(8, 3)]
