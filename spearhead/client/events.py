"""What a server answers: plain data, durations in seconds."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeVar

FinishReason = Literal["stop", "length", "abort"]
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The request was accepted; first event of every answer.

    Attributes:
        request_id: For :meth:`abort` and for finding the request in logs and traces.
        prompt_token_count: Length of the prompt in tokens.
        seed: Reproduces this output.
    """

    request_id: str
    prompt_token_count: int
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprobs:
    """Log-probabilities of one emitted token, before temperature, penalties, bias and filters.

    Attributes:
        token_id: The token.
        logprob: Natural log of its probability.
        rank: Its rank; 1 = most likely.
        top: The most likely tokens with their log-probabilities, best first.
    """

    token_id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """New output.

    Attributes:
        token_ids: Tokens committed since the last delta.
        text: Text that became certain; whole characters only. May lag behind ``token_ids``.
        logprobs: One a token, when asked for.
    """

    token_ids: tuple[int, ...] = ()
    text: str = ""
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Token counts; ``cached_tokens`` of the prompt came from the prefix cache."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationStats:
    """What speculation did for a request.

    Attributes:
        drafted_tokens: Draft tokens sent to the verifier.
        accepted_tokens: Of these, accepted.
        rounds: Verification steps that committed at least one token.
        active: False when the request ran without a drafter although speculation was allowed.
        inactive_reason: Why; empty when active.
    """

    drafted_tokens: int = 0
    accepted_tokens: int = 0
    rounds: int = 0
    active: bool = False
    inactive_reason: str = ""

    @property
    def acceptance(self) -> float | None:
        """Share of drafts that were accepted, 0..1; ``None`` when nothing was drafted."""
        return self.accepted_tokens / self.drafted_tokens if self.drafted_tokens else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Where the time of a request went, seconds; the fields are explained in the contract."""

    e2e_s: float = 0.0
    time_to_first_token_s: float = 0.0
    queue_s: float = 0.0
    prefill_s: float = 0.0
    draft_s: float = 0.0
    verify_s: float = 0.0
    network_s: float = 0.0
    scheduler_s: float = 0.0
    preemptions: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The end; last event of every answer that did not fail.

    Attributes:
        reason: "stop" (end-of-sequence, stop token or stop string), "length" or "abort".
        stop_string: The stop string that ended it, else ``None``.
        stop_token_id: The token that ended it, else ``None``.
        usage: Token counts.
        speculation: What speculation did.
        timings: Where the time went.
    """

    reason: FinishReason
    stop_string: str | None = None
    stop_token_id: int | None = None
    usage: Usage = Usage()
    speculation: SpeculationStats = SpeculationStats()
    timings: Timings = Timings()


Event = Started | Delta | Finished


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationResult:
    """A whole answer: its first and last event and everything between them joined."""

    started: Started
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    finished: Finished


class ResultBuilder:
    """Joins the events of one answer."""

    def __init__(self) -> None:
        self._started: Started | None = None
        self._deltas: list[Delta] = []
        self._finished: Finished | None = None

    def add(self, event: Event) -> None:
        """Takes the next event."""
        match event:
            case Started():
                self._started = event
            case Delta():
                self._deltas.append(event)
            case Finished():
                self._finished = event

    def result(self) -> GenerationResult:
        """The whole answer; all its events must have been added."""
        assert self._started is not None, "no started event"
        assert self._finished is not None, "no finished event"
        return GenerationResult(
            started=self._started,
            text="".join(delta.text for delta in self._deltas),
            token_ids=_joined(delta.token_ids for delta in self._deltas),
            logprobs=_joined(delta.logprobs for delta in self._deltas),
            finished=self._finished,
        )


def _joined(parts: Iterable[tuple[Item, ...]]) -> tuple[Item, ...]:
    return tuple(item for part in parts for item in part)
