"""``grpc.health.v1`` under the names that probes ask for, and a liveness that notices a stuck engine."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

HEALTH_SERVICE = "grpc.health.v1.Health"
_WATCH_INTERVAL_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Heartbeat:
    last_progress: Callable[[], float]
    busy: Callable[[], bool]
    limit_s: float


class HealthState:
    """Whether the service has started, is ready for requests, and is alive.

    * ``startup`` serves once :meth:`set_started` was called.
    * ``readiness``, the empty name and every service name serve while ready and not draining.
    * Parts (:meth:`set_part`) have names of their own, and readiness does not depend on them.
    * ``liveness`` serves always, unless a watched engine is busy without progress. A draining or loading
      service is alive.
    """

    def __init__(self, service_names: Iterable[str], *, clock: Callable[[], float] = time.monotonic) -> None:
        """Starts as alive, neither started nor ready.

        Args:
            service_names: Full names of the services behind the port.
            clock: Monotonic seconds; the same clock as the engine's ``last_progress``.
        """
        self._readiness_names = {"", "readiness", *service_names}
        self._clock = clock
        self._started = False
        self._ready = False
        self._parts: dict[str, bool] = {}
        self._draining = False
        self._reason = "starting"
        self._heartbeats: list[_Heartbeat] = []
        self._changed = asyncio.Event()

    @property
    def names(self) -> tuple[str, ...]:
        """Every name that :meth:`serving` knows."""
        return (*sorted(self._readiness_names), *sorted(self._parts), "startup", "liveness")

    @property
    def ready(self) -> bool:
        """Whether new requests are welcome."""
        return self._ready and not self._draining

    @property
    def reason(self) -> str:
        """Why the service is not ready; empty = it is."""
        return "draining" if self._draining else self._reason

    def set_started(self) -> None:
        """Start-up is over: the model is loaded."""
        self._started = True
        self._notify()

    def set_ready(self, ready: bool, reason: str = "") -> None:
        """Says whether requests can be served now.

        Args:
            ready: Whether they can.
            reason: Why not.
        """
        self._ready = ready
        self._reason = "" if ready else reason or "not ready"
        self._notify()

    def set_part(self, name: str, serving: bool) -> None:
        """Says whether a part that the service can do without works; the first call makes its name known.

        Args:
            name: Not one of the other names.
            serving: Whether it does.
        """
        self._parts[name] = serving
        self._notify()

    def set_draining(self) -> None:
        """Turns readiness off for good. Liveness stays: a draining process must not be killed."""
        self._draining = True
        self._notify()

    def watch_heartbeat(
        self, last_progress: Callable[[], float], busy: Callable[[], bool], limit_s: float
    ) -> None:
        """Ties liveness to an engine; an idle engine is never stuck.

        Args:
            last_progress: When it last finished a step, or became busy: seconds of ``time.monotonic``.
            busy: Whether it has work.
            limit_s: Seconds without progress after which a busy engine counts as stuck.
        """
        self._heartbeats.append(_Heartbeat(last_progress=last_progress, busy=busy, limit_s=limit_s))

    def serving(self, name: str) -> bool | None:
        """Whether ``name`` serves now; ``None`` = no such name."""
        if name in self._readiness_names:
            return self.ready
        if name in self._parts:
            return self._parts[name]
        if name == "startup":
            return self._started
        if name == "liveness":
            now = self._clock()
            return not any(
                beat.busy() and now - beat.last_progress() > beat.limit_s for beat in self._heartbeats
            )
        return None

    async def wait_for_change(self) -> None:
        """Returns at the next change of state."""
        await self._changed.wait()

    def _notify(self) -> None:
        # A fresh event for the next change: whoever waits for this one wakes up.
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


class HealthServicer(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # gRPC ships no types
    """Answers probes from a :class:`HealthState`."""

    def __init__(self, state: HealthState) -> None:
        """Takes the state.

        Args:
            state: What to tell.
        """
        self._state = state

    async def Check(  # noqa: N802  # the protocol's name
        self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext
    ) -> health_pb2.HealthCheckResponse:
        """The state now; NOT_FOUND for an unknown name, as the protocol wants."""
        serving = self._state.serving(request.service)
        if serving is None:
            await context.abort(
                grpc.StatusCode.NOT_FOUND,
                f"no health state is called {request.service!r}; there are: {', '.join(self._state.names)}",
            )
        return _response(serving)

    async def Watch(  # noqa: N802
        self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        """The state now and whenever it changes, until the caller hangs up."""
        sent: bool | str | None = "nothing"
        while True:
            changed = asyncio.ensure_future(self._state.wait_for_change())
            try:
                serving = self._state.serving(request.service)
                if serving != sent:
                    yield _response(serving)
                    sent = serving
                # Liveness changes by time passing, which no event tells.
                await asyncio.wait({changed}, timeout=_WATCH_INTERVAL_S)
            finally:
                changed.cancel()


def _response(serving: bool | None) -> health_pb2.HealthCheckResponse:
    if serving is None:
        status = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
    elif serving:
        status = health_pb2.HealthCheckResponse.SERVING
    else:
        status = health_pb2.HealthCheckResponse.NOT_SERVING
    return health_pb2.HealthCheckResponse(status=status)
