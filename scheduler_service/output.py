"""Turns committed tokens into text and decides where a request ends.

The outcome does not depend on how the tokens were cut into runs: speculation changes when a token arrives,
never what it means. Stop strings are therefore looked for after each single token.
"""

import enum
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol


class FinishReason(enum.Enum):
    """Why generation ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"  # It failed; the client gets a status instead of an end.


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """The end of a request.

    Attributes:
        reason: Why.
        stop_string: The stop string that ended it; empty = none did.
        stop_token_id: The token that ended it; ``None`` = none did.
    """

    reason: FinishReason
    stop_string: str = ""
    stop_token_id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputStep:
    """What one run of committed tokens came to.

    Attributes:
        kept_count: Leading tokens of the run that belong to the output; the rest comes after its end.
        text: Text that became certain.
        finish: Set when the output ends with the last kept token.
    """

    kept_count: int
    text: str
    finish: Finish | None


class Detokenizer(Protocol):
    """Ids to text, whole characters only."""

    def push(self, ids: Sequence[int]) -> str:
        """Text that ``ids`` complete."""

    def flush(self) -> str:
        """Text of the bytes that are left."""


class StopStrings:
    """Finds the first of some strings in a text that arrives in pieces.

    Args:
        stop_strings: What to look for; empty = everything passes through at once.
    """

    def __init__(self, stop_strings: Sequence[str]) -> None:
        self._stop_strings = tuple(stop_strings)
        self._held = ""

    @property
    def watching(self) -> bool:
        """Whether there is anything to look for."""
        return bool(self._stop_strings)

    def feed(self, text: str) -> tuple[str, str]:
        """Takes the next piece of text.

        Returns:
            The text that can no longer become part of a stop string, and the stop string that was
            found (empty = none). Once one is found, the text ends before it.
        """
        self._held += text
        found = [(self._held.find(stop), stop) for stop in self._stop_strings if stop in self._held]
        if found:
            start, stop = min(found, key=lambda match: match[0])
            released, self._held = self._held[:start], ""
            return released, stop
        keep = max((_overlap(self._held, stop) for stop in self._stop_strings), default=0)
        cut = len(self._held) - keep
        released, self._held = self._held[:cut], self._held[cut:]
        return released, ""

    def flush(self) -> str:
        """The text that was held back, now that no more comes."""
        released, self._held = self._held, ""
        return released


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of ``text`` that begins ``stop`` without being all of it."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0


class OutputAssembler:
    """The output of one request: its tokens counted, its text, its end.

    Args:
        detokenizer: Fresh, for this request alone.
        stop_strings: Generation ends before the first of them.
        stop_token_ids: Generation ends with one of them, the model's own end tokens included.
        min_tokens: Stop tokens do not count before this many tokens.
        max_tokens: Generation ends with this many tokens.
    """

    def __init__(
        self,
        detokenizer: Detokenizer,
        *,
        stop_strings: Sequence[str],
        stop_token_ids: Collection[int],
        min_tokens: int,
        max_tokens: int,
    ) -> None:
        self._detokenizer = detokenizer
        self._stops = StopStrings(stop_strings)
        self._stop_token_ids = frozenset(stop_token_ids)
        self._min_tokens = min_tokens
        self._max_tokens = max_tokens
        self.token_count = 0

    def push(self, token_ids: Sequence[int]) -> OutputStep:
        """Takes one run of committed tokens, in order.

        A stop string or stop token wins over ``max_tokens`` when both come with the same token.
        """
        text = ""
        if not self._stops.watching:
            return self._push_run(token_ids)
        for index, token_id in enumerate(token_ids):
            released, finish = self._push_token(token_id)
            text += released
            if finish is not None:
                return OutputStep(kept_count=index + 1, text=text, finish=finish)
        return OutputStep(kept_count=len(token_ids), text=text, finish=None)

    def flush(self) -> str:
        """The text that is still held back, for an output that is ended from outside."""
        released, stop = self._stops.feed(self._detokenizer.flush())
        return released if stop else released + self._stops.flush()

    def _push_run(self, token_ids: Sequence[int]) -> OutputStep:
        """The whole run at once: without stop strings only ids and counts can end it."""
        first, room = self.token_count, self._max_tokens - self.token_count
        run = token_ids[:room]
        finish = Finish(reason=FinishReason.LENGTH) if len(token_ids) >= room else None
        for index, token_id in enumerate(run):
            if token_id in self._stop_token_ids and first + index >= self._min_tokens:
                run = run[: index + 1]
                finish = Finish(reason=FinishReason.STOP, stop_token_id=token_id)
                break
        self.token_count += len(run)
        stopped = finish is not None and finish.stop_token_id is not None
        text = self._detokenizer.push(run[:-1] if stopped else run)
        if finish is not None:
            text += self._detokenizer.flush()
        return OutputStep(kept_count=len(run), text=text, finish=finish)

    def _push_token(self, token_id: int) -> tuple[str, Finish | None]:
        stopping = token_id in self._stop_token_ids and self.token_count >= self._min_tokens
        self.token_count += 1
        if stopping:
            return self.flush(), Finish(reason=FinishReason.STOP, stop_token_id=token_id)
        released, stop = self._stops.feed(self._detokenizer.push([token_id]))
        if not stop and self.token_count == self._max_tokens:
            rest, stop = self._stops.feed(self._detokenizer.flush())
            released += rest
            if not stop:
                return released + self._stops.flush(), Finish(reason=FinishReason.LENGTH)
        if stop:
            return released, Finish(reason=FinishReason.STOP, stop_string=stop)
        return released, None
