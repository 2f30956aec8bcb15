"""The attempts at one call: its deadline, its failures, and what the caller is told in the end."""

import random
import time

import grpc

from spearhead.client.retry import RetryPolicy, retry_delay_s
from spearhead.errors import DeadlineExceeded, NotReady, SpearheadError
from spearhead.rpc import error_from_rpc

_DETAILS_KEY = "grpc-status-details-bin"


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
        error = self._explain(failure, arrived=arrived)
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

    def _explain(self, failure: grpc.RpcError, *, arrived: bool) -> SpearheadError:
        """The server's error; failures of the transport itself get a text that says what to do."""
        error = error_from_rpc(failure)
        if isinstance(error, DeadlineExceeded):
            return DeadlineExceeded(f"no full answer from {self._address} within {self._timeout_s:g} s")
        if not isinstance(error, NotReady) or _sent_by_server(failure):
            return error
        if arrived:
            return NotReady(
                f"the connection to {self._address} broke in the middle of an answer ({error.message}); "
                "send the request again if it may run twice"
            )
        return NotReady(
            f"no Spearhead scheduler answers at {self._address} ({error.message}); "
            "start one with `spearhead up` or check the address"
        )


def _sent_by_server(failure: grpc.RpcError) -> bool:
    """A Spearhead server sends details with every error; gRPC's own failures have none."""
    return any(key == _DETAILS_KEY for key, _ in failure.trailing_metadata() or ())
