"""Prometheus metrics: a registry of its own, served over HTTP."""

import threading
from wsgiref.simple_server import WSGIServer

from prometheus_client import (
    CollectorRegistry,
    Counter,
    GCCollector,
    Histogram,
    ProcessCollector,
    start_http_server,
)

from spearhead.errors import ConfigError

# From a loopback unary call to a long generation.
_RPC_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class BaseMetrics:
    """What every service measures about itself: its process, lost spans, its RPCs."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Registers everything.

        Args:
            registry: The service's own registry; a second instance in it is refused by Prometheus.
        """
        ProcessCollector(registry=registry)
        GCCollector(registry=registry)
        self._spans_dropped = Counter(
            "spearhead_trace_spans_dropped",
            "Spans lost because the queue was full, the export failed or the process ended.",
            ["reason"],
            registry=registry,
        )
        self._rpc_calls = Counter(
            "spearhead_rpc_server_calls",
            "Finished RPCs by method and gRPC status code.",
            ["method", "code"],
            registry=registry,
        )
        self._rpc_duration = Histogram(
            "spearhead_rpc_server_duration_seconds",
            "Life of an RPC, from its start to its status.",
            ["method"],
            buckets=_RPC_BUCKETS_S,
            registry=registry,
        )
        for reason in ("queue_full", "export_failed", "shutdown"):
            self._spans_dropped.labels(reason)

    def count_dropped_spans(self, reason: str, count: int) -> None:
        """Counts lost spans."""
        self._spans_dropped.labels(reason).inc(count)

    def observe_rpc(self, method: str, code: str, duration_s: float) -> None:
        """Counts a finished RPC.

        Args:
            method: ``package.Service/Method``.
            code: Name of the status code, such as ``OK``.
            duration_s: Seconds from its start to its status.
        """
        self._rpc_calls.labels(method, code).inc()
        self._rpc_duration.labels(method).observe(duration_s)


class MetricsServer:
    """The HTTP endpoint: OpenMetrics when the client accepts it, otherwise Prometheus text."""

    def __init__(self, listen: str, registry: CollectorRegistry) -> None:
        """Binds and serves on a thread.

        Args:
            listen: ``host:port``; port 0 = any free one.
            registry: What is served.

        Raises:
            ConfigError: ``listen`` is malformed or cannot be bound.
        """
        host, separator, port = listen.rpartition(":")
        if not separator or not port.isdigit() or int(port) > 65535:
            raise ConfigError(
                f"telemetry.metrics_listen is {listen!r}; it must be host:port, such as 127.0.0.1:9464"
            )
        try:
            self._server: WSGIServer
            self._thread: threading.Thread
            self._server, self._thread = start_http_server(int(port), host.strip("[]"), registry)
        except OSError as error:
            raise ConfigError(
                f"telemetry.metrics_listen {listen} cannot be bound: {error.strerror or error}; "
                "stop what uses the port, or choose another (port 0 = any free one)"
            ) from error
        self.address = f"{host}:{self._server.server_port}"

    def close(self) -> None:
        """Stops serving; takes up to half a second."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
