"""What the drafter is asked, and the drafts that came after everything unusable was taken away."""

import itertools
from dataclasses import dataclass

from scheduler_service.request import Request
from scheduler_service.wire import pack_token_ids, unpack_token_ids
from spearhead.v1 import draft_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """Drafts for one request.

    Attributes:
        token_ids: The drafts, each below the vocabulary size; possibly none.
        computed_length: Tokens whose KV the drafter holds, drafts included.
    """

    token_ids: list[int]
    computed_length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposals:
    """What one message to the drafter brought.

    Attributes:
        by_sequence: Sequence id to drafts.
        worker_s: The drafter's own time, seconds.
        network_s: The rest of the round trip.
    """

    by_sequence: dict[int, Proposal]
    worker_s: float = 0.0
    network_s: float = 0.0


NO_PROPOSALS = Proposals(by_sequence={})


def add_item(
    message: draft_pb2.ProposeRequest,
    request: Request,
    session: int,
    *,
    drafts: int = 0,
    token_budget: int | None = None,
) -> draft_pb2.ProposeItem:
    """Adds what the drafter lacks of a sequence to a message, where it is built in place.

    Args:
        message: What to add to.
        request: Whose sequence.
        session: The connection that the message is for.
        drafts: How many drafts to ask for.
        token_budget: Most tokens to compute; ``None`` = all.

    Returns:
        The item.
    """
    state = request.draft
    state.attach(session)
    state.held = True
    start = min(state.computed_length, len(request.token_ids) - 1)  # An item needs a token.
    # The prefix cache is asked only about a new sequence, which therefore goes out whole.
    end = None if token_budget is None or not start else start + token_budget
    return message.items.add(
        sequence_id=request.sequence_id,
        epoch=state.epoch,
        committed_length=start,
        token_ids=pack_token_ids(request.token_ids[start:end]),
        max_draft_tokens=drafts,
        max_compute_tokens=token_budget,
        sampling=request.sampling,
    )


def read_proposal(
    request: Request,
    wanted: int,
    item: draft_pb2.ProposeItem,
    result: draft_pb2.ProposeItemResult,
    vocab_size: int,
) -> Proposal:
    """The usable part of an answer: a drafter may be of any quality, so nothing in it is trusted.

    Args:
        request: For whom.
        wanted: Drafts that were asked for; what is beyond is cut.
        item: What was asked.
        result: What came, without an error.
        vocab_size: The first draft at or above it ends the drafts.
    """
    count = min(wanted, len(result.draft_token_ids) // 4)
    token_ids = unpack_token_ids(result.draft_token_ids[: 4 * count])
    good = list(itertools.takewhile(lambda token_id: token_id < vocab_size, token_ids))
    computed = min(result.computed_length, len(request.token_ids) + len(good))
    return Proposal(token_ids=good, computed_length=max(item.committed_length, computed))
