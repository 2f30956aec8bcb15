"""How long a step waits for the drafter, and when a silent drafter counts as lost."""

_WAIT_FACTOR = 10.0
_SHORTEST_WAIT_S = 0.25
_WEIGHT = 0.2


class DraftPatience:
    """Learns from answered proposals what to expect of the next one.

    Args:
        longest_s: Most to wait for one message; also the wait while nothing was measured.
        max_timeouts: After so many proposals in a row without an answer the drafter counts as lost.
    """

    def __init__(self, longest_s: float, max_timeouts: int) -> None:
        self._longest_s = longest_s
        self._max_timeouts = max_timeouts
        self._duration_s: float | None = None
        self._tokens = 1.0
        self._timeout_count = 0

    @property
    def longest_s(self) -> float:
        """Most to wait for one message, seconds."""
        return self._longest_s

    def wait_s(self, tokens: int) -> float:
        """How long a step waits for a proposal.

        Args:
            tokens: Tokens that the drafter computes for it, drafts included. More than usual may take
                longer in proportion: a batch that grows at once must not look like a drafter that hangs.
        """
        if self._duration_s is None:
            return self._longest_s
        expected_s = self._duration_s * max(1.0, tokens / self._tokens)
        return min(max(_WAIT_FACTOR * expected_s, _SHORTEST_WAIT_S), self._longest_s)

    def answered(self, duration_s: float, tokens: int) -> None:
        """A proposal of so many tokens was answered after ``duration_s``."""
        self._timeout_count = 0
        if self._duration_s is None:
            self._duration_s, self._tokens = duration_s, max(1.0, tokens)
            return
        self._duration_s += _WEIGHT * (duration_s - self._duration_s)
        self._tokens += _WEIGHT * (max(1.0, tokens) - self._tokens)

    def timed_out(self) -> bool:
        """A message was not answered in time; returns whether the drafter counts as lost by that."""
        self._timeout_count += 1
        if self._timeout_count < self._max_timeouts:
            return False
        self._timeout_count = 0
        if self._duration_s is not None:
            # Perhaps it hangs, perhaps it became slow for good: the next connection gets more time.
            self._duration_s *= 2
        return True
