"""The attempts at one call: its deadline, its failures, and the decision to try again."""

import random
import time

import grpc

from spearhead.client.retry import RetryPolicy, retry_delay_s
from spearhead.rpc import error_from_rpc


class Attempts:
    """Counts the attempts at one call and decides after a failure; owns the call's deadline."""

    def __init__(self, address: str, policy: RetryPolicy, timeout_s: float) -> None:
        if not timeout_s > 0:
            raise ValueError(f"timeout_s is {timeout_s}; it must be greater than 0")
        self._address = address
        self._policy = policy
        self._timeout_s = timeout_s
        self._deadline_s = time.monotonic() + timeout_s
        self._count = 0

    def start(self) -> float:
        """Begins an attempt; returns the seconds that are left for it."""
        self._count += 1
        return max(self._deadline_s - time.monotonic(), 0.001)

    def delay_after(self, failure: grpc.RpcError, *, arrived: bool) -> float:
        """Seconds to wait before the next attempt.

        Args:
            failure: How the attempt ended.
            arrived: A message had arrived before.

        Raises:
            SpearheadError: The call must not be repeated; the error that the server raised.
        """
        error = error_from_rpc(failure, self._address)
        delay_s = None
        if not arrived:
            delay_s = retry_delay_s(
                self._policy,
                error,
                attempt=self._count,
                remaining_s=self._deadline_s - time.monotonic(),
                jitter=random.random(),
            )
        if delay_s is None:
            raise error from failure
        return delay_s
