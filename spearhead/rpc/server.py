"""A gRPC server with everything that each of our services needs around its own servicer."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Self

import grpc
from grpc_health.v1 import health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from spearhead.rpc.auth import AuthLayer, TokenFile
from spearhead.rpc.calls import Layer, LayerInterceptor
from spearhead.rpc.channel import read_pem
from spearhead.rpc.conventions import WORKER_STREAM_METHODS
from spearhead.rpc.drain import RunningCalls
from spearhead.rpc.endpoint import EndpointConfig, is_local, server_options
from spearhead.rpc.errors import error_layer
from spearhead.rpc.health import HEALTH_SERVICE, HealthServicer, HealthState
from spearhead.rpc.listen import bind
from spearhead.rpc.server_spans import ServerSpanLayer
from spearhead.telemetry import Telemetry

_LAST_ANSWERS_S = 0.5
_logger = logging.getLogger("spearhead.rpc")


class Server:
    """Health, reflection, TLS, tokens, errors, spans, limits and drain around some servicers.

    Make it inside the running event loop, add servicers to :attr:`grpc_server`, then :meth:`start`. Use it
    with ``async with``, so that a failure later in the start-up ends it too.
    Handlers are ``async`` functions or ``async`` generators.

    Attributes:
        grpc_server: For ``add_…Servicer_to_server``.
        health: What probes are told. A new server is neither started nor ready.
        address: The bound address; before :meth:`start` the configured one.
        health_address: The bound address of the plaintext health port; ``None`` = there is none.
    """

    def __init__(
        self, endpoint: EndpointConfig, *, service_names: Sequence[str], telemetry: Telemetry,
        worker_stream_methods: frozenset[str] = WORKER_STREAM_METHODS,
        drain_methods: frozenset[str] = frozenset(), keeps_limits: bool = False,
    ) -> None:  # fmt: skip
        """Reads certificates and tokens; binds nothing yet.

        Args:
            endpoint: Where to listen and whom to let in.
            service_names: Full names of the services that will be added, for health and reflection.
            telemetry: Where spans and metrics go.
            worker_stream_methods: ``package.Service/Method`` of streams without a span for their whole life.
            drain_methods: ``package.Service/Method`` of short calls that are answered while draining too.
            keeps_limits: The servicers keep the limits of :func:`~spearhead.rpc.caller.current_caller`;
                otherwise a token file that sets some is refused.

        Raises:
            ConfigError: A certificate, key or token file cannot be used.
        """
        self.address = endpoint.listen
        self.health_address: str | None = None
        self.health = HealthState(service_names)
        self._endpoint = endpoint
        self._calls = RunningCalls(drain_methods)
        self._credentials = _credentials(endpoint)
        spans = ServerSpanLayer(
            telemetry, address=lambda: self.address, worker_stream_methods=worker_stream_methods
        )
        layers: list[Layer] = [spans, error_layer, self._calls]
        if endpoint.token_file:
            layers.append(AuthLayer(TokenFile(endpoint.token_file, with_limits=keeps_limits)))
        options = server_options(endpoint)
        self.grpc_server = grpc.aio.server(interceptors=[LayerInterceptor(layers)], options=options)
        self._servers = [self.grpc_server]
        health_pb2_grpc.add_HealthServicer_to_server(HealthServicer(self.health), self.grpc_server)
        reflected = (*service_names, HEALTH_SERVICE, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(reflected, self.grpc_server)

    async def __aenter__(self) -> Self:
        """For ``async with``: whatever still runs at its end is stopped at once."""
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.drain(0.0)

    @property
    def drain_s(self) -> float:
        """Seconds that running calls get at the end."""
        return self._endpoint.drain_s

    async def start(self) -> str:
        """Binds and serves.

        Returns:
            The bound address, such as ``127.0.0.1:41234`` or ``unix:/run/verify.sock``.

        Raises:
            ConfigError: An address cannot be bound; the message names it.
        """
        endpoint = self._endpoint
        if not self._credentials and not is_local(endpoint.listen):
            _logger.warning(
                "%s is reachable from other machines without TLS; set tls_certificate and tls_key",
                endpoint.listen,
            )
        self.address = bind(self.grpc_server, "server.listen", endpoint.listen, self._credentials)
        if endpoint.health_listen:
            probes = grpc.aio.server(options=server_options(endpoint))
            health_pb2_grpc.add_HealthServicer_to_server(HealthServicer(self.health), probes)
            self.health_address = bind(probes, "server.health_listen", endpoint.health_listen, None)
            self._servers.append(probes)
        for server in self._servers:
            await server.start()
        _logger.info("listening on %s", self.address)
        return self.address

    async def drain(self, grace_s: float) -> None:
        """Ends the server: readiness off, new calls refused, running ones finish, then the ports close.

        Probes are answered until the end. Health's liveness never turns off.

        Args:
            grace_s: Seconds after which running calls are cancelled.
        """
        self.health.set_draining()
        self._calls.refuse_new()
        idle = await self._calls.wait_idle(grace_s)
        if not idle:
            _logger.warning("calls that still run after %g s are cancelled: %d", grace_s, self._calls.count)
        # Without a grace, calls that are being refused in this moment would be cut off and seem cancelled.
        last_s = min(grace_s, _LAST_ANSWERS_S) if idle else 0.0
        await asyncio.gather(*(server.stop(last_s or None) for server in self._servers))


def _credentials(endpoint: EndpointConfig) -> grpc.ServerCredentials | None:
    if not endpoint.tls_certificate or not endpoint.tls_key:
        return None
    client_ca = read_pem("tls_client_ca", endpoint.tls_client_ca) if endpoint.tls_client_ca else None
    key = read_pem("tls_key", endpoint.tls_key)
    certificate = read_pem("tls_certificate", endpoint.tls_certificate)
    return grpc.ssl_server_credentials(
        [(key, certificate)], root_certificates=client_ca, require_client_auth=client_ca is not None
    )
