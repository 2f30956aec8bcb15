"""A worker's clock against a scheduler's, without synchronised clocks.

Every round trip bounds the difference: the worker worked between sending and receiving. The fastest of the
round trips near a moment gives the best bound, half its time on the network.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from spearhead.trace.spans import Span

NEAR_NS = 60 * 10**9
"""Clocks drift; only round trips within a minute count, if there are any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _RoundTrip:
    worker_ns: int
    offset_ns: int
    network_ns: int


class WorkerClocks:
    """Offsets between processes, learnt from pairs of CLIENT and SERVER spans.

    Args:
        spans: Of all services.
    """

    def __init__(self, spans: Sequence[Span]) -> None:
        calls = {
            (span.trace_id, span.span_id): span for span in spans if span.name.endswith(("/Step", "/Propose"))
        }
        self._trips: dict[tuple[str, str, str], list[_RoundTrip]] = defaultdict(list)
        for server in calls.values():
            client = calls.get((server.trace_id, server.parent_id))
            if client is not None and client.process != server.process:
                worker = "verify" if "Verify" in server.name else "draft"
                self._trips[server.process, client.process, worker].append(
                    _RoundTrip(
                        worker_ns=server.start_ns,
                        offset_ns=(server.start_ns + server.end_ns - client.start_ns - client.end_ns) // 2,
                        network_ns=client.duration_ns - server.duration_ns,
                    )
                )

    def on_scheduler_clocks(self, process: str, time_ns: int) -> Iterator[tuple[str, str, int]]:
        """A worker's moment on the clocks of the schedulers that it serves.

        Args:
            process: The worker's process.
            time_ns: By its clock.

        Yields:
            The scheduler's process, the worker's kind, the time by the scheduler's clock.
        """
        for (worker_process, scheduler, worker), trips in self._trips.items():
            if worker_process == process:
                yield scheduler, worker, time_ns - _offset_ns(trips, time_ns)

    def offset_ns(self, process: str) -> int:
        """How far a process's clock is before that of a scheduler it serves; 0 where nothing is known."""
        for (worker_process, _, _), trips in self._trips.items():
            if worker_process == process:
                return min(trips, key=lambda trip: trip.network_ns).offset_ns
        return 0


def _offset_ns(trips: Sequence[_RoundTrip], time_ns: int) -> int:
    near = [trip for trip in trips if abs(trip.worker_ns - time_ns) <= NEAR_NS]
    return min(near or trips, key=lambda trip: trip.network_ns).offset_ns
