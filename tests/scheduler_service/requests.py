"""Requests without text or client, for tests of the books alone."""

from opentelemetry.trace import INVALID_SPAN, NoOpTracer

from scheduler_service.accounting import Accounting
from scheduler_service.delivery import OutputChannel
from scheduler_service.output import OutputAssembler
from scheduler_service.peers import Target
from scheduler_service.request import Request
from scheduler_service.spec import GenerationSpec
from scheduler_service.tracing import RequestTrace, WallClock


class NoText:
    def push(self, ids: object) -> str:
        return ""

    def flush(self) -> str:
        return ""


def make_request(
    number: int,
    *,
    prompt: int = 3,
    priority: int = 0,
    arrival_s: float | None = None,
    max_tokens: int = 1,
    max_draft_tokens: int | None = None,
    logprob_count: int | None = None,
) -> Request:
    """Request ``number``, which arrives at second ``number`` unless ``arrival_s`` says otherwise."""
    spec = GenerationSpec(
        request_id=str(number),
        prompt_token_ids=tuple(range(prompt)),
        max_tokens=max_tokens,
        priority=priority,
        max_draft_tokens=max_draft_tokens,
        logprob_count=logprob_count,
    )
    return Request(
        spec,
        sequence_id=number,
        output=OutputAssembler(
            NoText(), stop_strings=(), stop_token_ids=(), min_tokens=0, max_tokens=max_tokens
        ),
        channel=OutputChannel(10),
        accounting=Accounting(float(number) if arrival_s is None else arrival_s),
        trace=RequestTrace(NoOpTracer(), INVALID_SPAN, WallClock()),
        deadline_s=None,
        target=Target(revision="sha256:1", context_length=4096, page_size=4, page_count=1000),
    )
