"""The way from the loop to one client: never waits for the client, never grows without bound."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from scheduler_service.accounting import Summary
from spearhead.errors import SlowReader, SpearheadError
from spearhead.v1 import types_pb2


@dataclass(slots=True, kw_only=True)
class Delta:
    """New output. Grows while the client does not take it.

    Attributes:
        token_ids: Tokens.
        texts: Pieces of text, to be joined.
        logprobs: One a token when asked for, as the worker sent them.
    """

    token_ids: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    logprobs: list[types_pb2.TokenLogprobs] = field(default_factory=list)


class OutputChannel:
    """What one client has not taken yet.

    One writer, the loop; one reader, the servicer's coroutine of this request. Deltas that the reader
    has not taken merge into one.

    Args:
        max_tokens: Most tokens to hold for a reader that lags.
    """

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._delta: Delta | None = None
        self._end: Summary | SpearheadError | None = None
        self._changed = asyncio.Event()

    @property
    def ended(self) -> bool:
        """Whether the last word was said."""
        return self._end is not None

    def put(
        self, token_ids: Sequence[int], text: str, logprobs: Sequence[types_pb2.TokenLogprobs] = ()
    ) -> None:
        """Adds output.

        Raises:
            SlowReader: The reader lags by more than the bound; nothing was added.
        """
        delta = self._delta or Delta()
        if len(delta.token_ids) + len(token_ids) > self._max_tokens:
            raise SlowReader(
                f"the client reads too slowly: {len(delta.token_ids)} tokens wait to be read, "
                f"at most {self._max_tokens} are kept; read the stream faster or ask for fewer tokens"
            )
        delta.token_ids.extend(token_ids)
        delta.logprobs.extend(logprobs)
        if text:
            delta.texts.append(text)
        self._delta = delta
        self._changed.set()

    def end(self, end: Summary | SpearheadError) -> None:
        """Says the last word. What was put before is still delivered; a second end is ignored."""
        if self._end is None:
            self._end = end
            self._changed.set()

    async def take(self) -> Delta | Summary:
        """The next thing for the client: everything new, or the end.

        Raises:
            SpearheadError: The request failed.
        """
        await self._changed.wait()
        if self._delta is not None:
            delta, self._delta = self._delta, None
            if self._end is None:
                self._changed.clear()
            return delta
        assert self._end is not None
        if isinstance(self._end, SpearheadError):
            raise self._end
        return self._end
