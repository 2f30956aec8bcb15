"""The attempts at one call: its deadline, its failures, and the decision to try again."""

import random
import time

import grpc

from spearhead.client.events import Event, Started
from spearhead.client.retry import RetryPolicy, retry_delay_s
from spearhead.rpc import error_from_rpc
from spearhead.v1 import scheduler_pb2


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
        self._started = False
        self._delivered = False

    def start(self) -> float:
        """Begins an attempt; returns the seconds that are left for it."""
        self._count += 1
        return max(self._deadline_s - time.monotonic(), 0.001)

    def arrived(self, event: Event, request: scheduler_pb2.GenerateRequest) -> bool:
        """Notes an event of the answer; ``False`` when the caller has it already, from an earlier attempt.

        Args:
            event: What arrived.
            request: Gets the seed of the answer, so that another attempt would give the same one.
        """
        if not isinstance(event, Started):
            self._delivered = True
            return True
        known, self._started = self._started, True
        request.sampling.seed = event.seed
        return not known

    def delay_after(self, failure: grpc.RpcError) -> float:
        """Seconds to wait before the next attempt.

        Args:
            failure: How the attempt ended.

        Raises:
            SpearheadError: The call must not be repeated; the error that the server raised.
        """
        error = error_from_rpc(failure, self._address)
        delay_s = None
        if not self._delivered:
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
