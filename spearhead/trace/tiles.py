"""A stretch of time divided without gap or overlap: what is painted later covers what was there."""

import bisect
import enum
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass


class Cause(enum.StrEnum):
    """What time was spent on, in the words of the report."""

    QUEUE = "queue"
    PREFILL_OF_OTHERS = "prefill of others"
    OWN_PREFILL = "own prefill"
    DRAFT = "draft"
    VERIFY = "verify"
    REJECTION = "rejection"
    NETWORK = "network"
    SCHEDULER = "scheduler"
    WORKER_STALL = "worker stall"
    WORKER_RESTART = "worker restart"
    PREEMPTION = "preemption"
    SLOW_READER = "slow reader"
    UNATTRIBUTED = "unattributed"


@dataclass(frozen=True, slots=True, kw_only=True)
class OthersPrompts:
    """What one step computed of prompts other than that of the request whose time is divided.

    Attributes:
        step_id: Number of the step.
        tokens: Prompt tokens by request.
        unrecorded_tokens: Those of requests that are not recorded.
    """

    step_id: int
    tokens: Mapping[str, int]
    unrecorded_tokens: int = 0


def in_words(prompts: Collection[OthersPrompts]) -> str:
    """Whose prompts were computed, with the tokens of all steps together, and in how many steps."""
    tokens: Counter[str] = Counter()
    for step in prompts:
        tokens.update(step.tokens)
    parts = [f"{request_id} ({count} tokens)" for request_id, count in tokens.items()]
    if unrecorded := sum(step.unrecorded_tokens for step in prompts):
        parts.append(f"requests that are not recorded ({unrecorded} tokens)")
    return ", ".join(parts) + (f" in {len(prompts)} steps" if len(prompts) > 1 else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """A piece of time.

    Attributes:
        start_ns: Its start.
        end_ns: Its end.
        cause: What it was spent on.
        note: More about that, for people; possibly empty.
        prompts: Whose prompts kept the step busy; ``None`` = none did, or it is not known.
    """

    start_ns: int
    end_ns: int
    cause: Cause
    note: str
    prompts: OthersPrompts | None = None

    @property
    def duration_ns(self) -> int:
        """Its length."""
        return self.end_ns - self.start_ns


class Tiles:
    """The division of one stretch.

    Args:
        start_ns: Its start.
        end_ns: Its end.
    """

    def __init__(self, start_ns: int, end_ns: int) -> None:
        self._start_ns = start_ns
        self._end_ns = end_ns
        # Tile i reaches from its start to that of tile i + 1; the last one to the end of the stretch.
        self._starts = [start_ns]
        self._labels: list[tuple[Cause, str, OthersPrompts | None]] = [(Cause.UNATTRIBUTED, "", None)]

    def paint(
        self,
        start_ns: int,
        end_ns: int,
        cause: Cause,
        note: str = "",
        prompts: OthersPrompts | None = None,
    ) -> None:
        """Gives a part of the stretch to a cause; what lies outside the stretch is ignored."""
        start_ns, end_ns = max(start_ns, self._start_ns), min(end_ns, self._end_ns)
        if start_ns >= end_ns:
            return
        first = bisect.bisect_left(self._starts, start_ns)
        last = bisect.bisect_right(self._starts, end_ns)
        after = self._labels[last - 1]
        starts, labels = [start_ns], [(cause, note, prompts)]
        if end_ns < self._end_ns:
            starts.append(end_ns)
            labels.append(after)
        self._starts[first:last] = starts
        self._labels[first:last] = labels

    def __iter__(self) -> Iterator[Tile]:
        ends = [*self._starts[1:], self._end_ns]
        for start_ns, end_ns, (cause, note, prompts) in zip(self._starts, ends, self._labels, strict=True):
            if end_ns > start_ns:
                yield Tile(start_ns=start_ns, end_ns=end_ns, cause=cause, note=note, prompts=prompts)
