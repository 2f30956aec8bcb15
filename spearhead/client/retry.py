"""When a failed call is tried again: a pure decision."""

from dataclasses import dataclass

from spearhead.errors import NotReady, RequestExists, SpearheadError


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often and how fast a call is repeated.

    Only UNAVAILABLE before the first delta is ever retried: after that, tokens have arrived and a repeated
    call would deliver them twice.

    Attributes:
        attempts: Calls in all, at least 1; 1 = never retry.
        initial_backoff_s: Wait before the second call.
        max_backoff_s: Longest wait; a server that asks for more is not waited for.
    """

    attempts: int = 4
    initial_backoff_s: float = 0.2
    max_backoff_s: float = 5.0

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.initial_backoff_s < 0 or self.max_backoff_s < self.initial_backoff_s:
            raise ValueError(
                f"{self} is not a retry policy; attempts >= 1, 0 <= initial_backoff_s <= max_backoff_s"
            )


def retry_delay_s(
    policy: RetryPolicy, error: SpearheadError, *, attempt: int, remaining_s: float, jitter: float
) -> float | None:
    """How long to wait before the next call.

    Args:
        policy: The limits.
        error: Why the call failed before its first delta.
        attempt: Number of the call that failed, from 1.
        remaining_s: Time left until the deadline.
        jitter: Uniform in 0..1; spreads the backoff over its upper half.

    Returns:
        Seconds, or ``None`` when the call must not be repeated. ``RequestExists`` on a repeated call
        means that the server has not noticed yet that our first connection broke, so it is waited for.
    """
    ours = isinstance(error, RequestExists) and attempt > 1
    if attempt >= policy.attempts or not (isinstance(error, NotReady) or ours):
        return None
    backoff_s = min(policy.max_backoff_s, policy.initial_backoff_s * 2 ** (attempt - 1))
    delay_s = backoff_s * (0.5 + 0.5 * jitter)
    if error.retry_after_s is not None:
        delay_s = max(delay_s, error.retry_after_s)
    return delay_s if delay_s <= policy.max_backoff_s and delay_s < remaining_s else None
