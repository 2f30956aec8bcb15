"""What happened, as plain data: steps with their calls to workers, requests with their rounds.

All times are Unix nanoseconds on the scheduler's clock.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """From ``start_ns`` to ``end_ns``, Unix nanoseconds."""

    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """A time in which nothing ran in a process but what was running.

    Attributes:
        process: The process.
        start_ns: Its start.
        end_ns: Its end.
        busy: The process computed meanwhile, in one piece that let nothing else in; otherwise it stood still.
    """

    process: str
    start_ns: int
    end_ns: int
    busy: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One message to a worker and its reply, nanoseconds.

    Attributes:
        worker: ``verify`` or ``draft``.
        process: The worker's process; empty = its span is not there.
        start_ns: When it was sent.
        end_ns: When the reply was taken up, or given up.
        total_ns: The worker's own time; ``None`` = unknown.
        wait_ns: Of this, before its model thread took the message.
        loop_lag_ns: From reading the reply until the scheduler was awake.
        error: Why there was no reply; empty = there was one.
    """

    worker: str
    process: str
    start_ns: int
    end_ns: int
    total_ns: int | None
    wait_ns: int
    loop_lag_ns: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A request that took part in a step.

    Attributes:
        request_id: Which.
        role: ``prefill`` or ``decode``.
        computed_tokens: Tokens of it that the step computed, beyond drafts.
    """

    request_id: str
    role: str
    computed_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One turn of the engine, or one catch-up of the drafter beside it.

    Attributes:
        name: ``engine.step``, ``engine.release`` (only tells workers what ended) or ``draft.catch_up``.
        step_id: Its number.
        process: The scheduler's process.
        start_ns: Its start.
        end_ns: Its end.
        members: Those of its requests that are recorded, by request id.
        calls: Its messages to workers.
        prefill_tokens: Prompt tokens in it, also of requests that are not recorded.
        tokens: All rows of its forward pass.
        error: Why it failed; empty = it did not.
    """

    name: str
    step_id: int
    process: str
    start_ns: int
    end_ns: int
    members: Mapping[str, Member]
    calls: tuple[Call, ...]
    prefill_tokens: int
    tokens: int
    error: str

    @property
    def beside(self) -> bool:
        """It runs beside the turns of the engine, not as one of them."""
        return self.name == "draft.catch_up"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """A time in which a request waited; ``reason`` as the scheduler gives it."""

    start_ns: int
    end_ns: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One step that brought tokens.

    Attributes:
        step_id: The step.
        emit_ns: When its tokens were handed on.
        drafted: Drafts verified.
        accepted: Drafts accepted.
        emitted: Tokens handed on.
    """

    step_id: int
    emit_ns: int
    drafted: int
    accepted: int
    emitted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request.

    Attributes:
        request_id: Its id.
        trace_id: Its trace.
        process: The scheduler's process.
        start_ns: Its arrival.
        end_ns: Its end, or that of the last span known of it.
        complete: Its own span is there; otherwise it still runs, or the span was lost.
        waits: When it waited.
        segments: Name and interval of all its parts, for drawing.
        rounds: What it got, in order.
        blocked: When its client did not take output.
        events: Name and time of what befell it.
        error: Why it failed; empty = it did not.
    """

    request_id: str
    trace_id: str
    process: str
    start_ns: int
    end_ns: int
    complete: bool
    waits: tuple[Wait, ...]
    segments: tuple[tuple[str, Interval], ...]
    rounds: tuple[Round, ...]
    blocked: tuple[Interval, ...]
    events: tuple[tuple[str, int], ...]
    error: str

    def happened(self, name: str, start_ns: int, end_ns: int) -> bool:
        """Whether an event of that name befell it then."""
        return any(event == name and start_ns <= time_ns <= end_ns for event, time_ns in self.events)
