"""Spans of the connections to workers: one for each time that a worker was there, and that it was not."""

import time
from typing import Protocol

from opentelemetry.trace import Tracer

from scheduler_service.tracing import WallClock
from scheduler_service.worker_link import LinkState
from spearhead.telemetry import ALWAYS_RECORDED, record_span


class Link(Protocol):
    """What is traced of a link."""

    state: LinkState
    detail: str
    session: int

    @property
    def name(self) -> str:
        """The worker, for messages."""


class LinkTrace:
    """Watches one link. A span ends, and can be seen, when the state does.

    Args:
        tracer: Where spans go.
        clock: Converts times.
        link: What is watched.
    """

    def __init__(self, tracer: Tracer, clock: WallClock, link: Link) -> None:
        self._tracer = tracer
        self._clock = clock
        self._link = link
        self._ready = False
        self._since_s = time.monotonic()
        self._reason = "not connected yet"

    def update(self) -> None:
        """Something may have changed."""
        ready = self._link.state is LinkState.READY
        if ready is self._ready:
            self._reason = self._link.detail or self._reason
            return
        now_s = time.monotonic()
        record_span(
            self._tracer,
            "worker.stream" if self._ready else "worker.lost",
            start_ns=self._clock.unix_ns(self._since_s),
            end_ns=self._clock.unix_ns(now_s),
            attributes={
                ALWAYS_RECORDED: True,
                "spearhead.worker": self._link.name,
                "spearhead.worker.session": self._link.session,
                "spearhead.worker.reason": self._link.detail if self._ready else self._reason,
            },
        )
        self._ready, self._since_s, self._reason = ready, now_s, self._link.detail
