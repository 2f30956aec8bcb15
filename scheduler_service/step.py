"""One sequence's part in a step: the item that goes out, and what its result means."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scheduler_service.request import Request
from scheduler_service.wire import pack_token_ids
from spearhead.errors import SpearheadError
from spearhead.v1 import types_pb2, verify_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPart:
    """What one sequence computes in a step.

    Attributes:
        request: Whose sequence.
        compute_token_count: Pending tokens to compute beyond what the prefix cache supplies.
        draft_token_ids: Drafts to verify after them.
        decoding: Only the last sampled token was pending.
        epoch: Of the sequence when the item was made.
        committed_length: Tokens that the target held then.
        known_length: Tokens of the sequence then.
    """

    request: Request
    compute_token_count: int
    draft_token_ids: Sequence[int]
    decoding: bool
    epoch: int
    committed_length: int
    known_length: int

    @classmethod
    def of(cls, request: Request, compute_token_count: int, draft_token_ids: Sequence[int]) -> "StepPart":
        """The part of a request as it is now."""
        return cls(
            request=request,
            compute_token_count=compute_token_count,
            draft_token_ids=draft_token_ids,
            decoding=request.decoding,
            epoch=request.verify.epoch,
            committed_length=request.verify.computed_length,
            known_length=len(request.token_ids),
        )

    @property
    def row_count(self) -> int:
        """Rows of the forward pass, at most."""
        return self.compute_token_count + len(self.draft_token_ids)

    def add_to(self, message: verify_pb2.StepRequest) -> None:
        """Adds the item to a message, where it is built in place.

        A new sequence goes out whole, so that the worker can look for cached prefixes.
        """
        request, start = self.request, self.committed_length
        whole = start == 0 or start + self.compute_token_count >= self.known_length
        end = self.known_length if whole else start + self.compute_token_count
        message.items.add(
            sequence_id=request.sequence_id,
            epoch=self.epoch,
            committed_length=start,
            token_ids=pack_token_ids([*request.token_ids[start:end], *self.draft_token_ids]),
            draft_token_count=len(self.draft_token_ids),
            max_compute_tokens=self.row_count,
            sample=whole,
            sampling=request.sampling,
            precision=request.precision,
            logprob_count=request.spec.logprob_count,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What a step did for one sequence.

    Attributes:
        computed_length: Tokens that the target holds now.
        cached_token_count: Of these, taken from the prefix cache by this step.
        token_ids: Tokens that were committed; empty for a prompt chunk.
        accepted: Of these, leading ones that were drafts.
        logprobs: One a token when asked for.
    """

    computed_length: int
    cached_token_count: int
    token_ids: Sequence[int]
    accepted: int
    logprobs: Sequence[types_pb2.TokenLogprobs]


def computed_token_count(part: StepPart, result: verify_pb2.StepItemResult) -> int:
    """Known tokens that the worker computed in a step, by its own word, beyond drafts and cached prefixes.

    It may be less than the plan wants: when less fits one step, when nothing else is left beyond a cached
    prefix, or none after an error or in a result that contradicts the item.
    """
    if result.HasField("error"):
        return 0
    known_length = result.computed_length - result.accepted_draft_count
    return max(known_length - result.cached_token_count - part.committed_length, 0)


def computed_token_counts(
    parts: Sequence[StepPart], results: Iterable[verify_pb2.StepItemResult]
) -> list[int]:
    """The same for every part of a step; a part without a result counts 0."""
    by_sequence = {result.sequence_id: result for result in results}
    found = [by_sequence.get(part.request.sequence_id) for part in parts]
    return [
        0 if result is None else computed_token_count(part, result)
        for part, result in zip(parts, found, strict=True)
    ]


def interpret(part: StepPart, result: verify_pb2.StepItemResult, vocab_size: int) -> Progress:
    """Reads a result without an error.

    Raises:
        SpearheadError: The result contradicts the item: a defect of the verify service. Going on would
            give the client tokens that its seed does not lead to.
    """
    drafts, accepted = part.draft_token_ids, result.accepted_draft_count
    sampled = result.HasField("next_token_id")
    limit = part.known_length + accepted if sampled else part.known_length
    problem = ""
    if not part.committed_length < result.computed_length <= limit:
        problem = f"computed length {result.computed_length} after {part.committed_length} of {limit} tokens"
    elif sampled and result.computed_length != limit:
        problem = f"a token was sampled at length {result.computed_length} of {limit}"
    elif not sampled and result.computed_length == limit:
        problem = f"all {limit} tokens were computed and none was sampled"
    elif accepted > (len(drafts) if sampled else 0):
        problem = f"{accepted} of {len(drafts)} drafts were accepted"
    elif sampled and result.next_token_id >= vocab_size:
        problem = f"token id {result.next_token_id} is beyond the vocabulary of {vocab_size}"
    token_ids = [*drafts[:accepted], result.next_token_id] if sampled else []
    wanted = part.request.spec.logprob_count is not None
    if not problem and wanted and len(result.logprobs) != len(token_ids):
        problem = f"{len(result.logprobs)} log-probabilities came for {len(token_ids)} tokens"
    if problem:
        raise SpearheadError(
            f"the verify service answered request {part.request.request_id!r} wrongly: {problem}"
        )
    return Progress(
        computed_length=result.computed_length,
        cached_token_count=result.cached_token_count,
        token_ids=token_ids,
        accepted=accepted,
        logprobs=result.logprobs if wanted else (),
    )
