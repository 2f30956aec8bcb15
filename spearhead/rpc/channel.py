"""Channels to a peer: limits, keepalive, TLS, bearer token, and a client span for every call.

Token and trace context are metadata, so they are added where a call starts. gRPC's client interceptors could
do that too, but put a queue and a task between the caller and every message of a stream.
"""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
from opentelemetry.trace import NoOpTracer, Tracer

from spearhead.errors import ConfigError
from spearhead.rpc.auth import TokenFile
from spearhead.rpc.client_spans import start_call_span
from spearhead.rpc.conventions import WORKER_STREAM_METHODS
from spearhead.rpc.endpoint import TargetConfig, channel_options, is_local

_logger = logging.getLogger("spearhead.rpc")


def create_channel(
    target: TargetConfig,
    interceptors: Sequence[grpc.aio.ClientInterceptor] = (),
    *,
    tracer: Tracer | None = None,
    worker_stream_methods: frozenset[str] = WORKER_STREAM_METHODS,
) -> grpc.aio.Channel:
    """A channel to ``target``; make it once, inside the running event loop.

    Args:
        target: The peer.
        interceptors: gRPC client interceptors of the caller's own.
        tracer: Records a CLIENT span for each call, child of the current span; ``None`` = records none.
        worker_stream_methods: ``package.Service/Method`` of streams that get no span: each message of
            theirs carries its own trace context.

    Raises:
        ConfigError: A certificate, key or token file cannot be used.
    """
    tokens = TokenFile(target.token_file) if target.token_file else None
    if tokens and not target.tls_ca and not is_local(target.address):
        _logger.warning(
            "the token for %s leaves this machine in plaintext; set tls_ca to encrypt it", target.address
        )
    options = channel_options(target)
    if target.tls_ca:
        credentials = grpc.ssl_channel_credentials(
            root_certificates=read_pem("tls_ca", target.tls_ca),
            private_key=read_pem("tls_key", target.tls_key) if target.tls_key else None,
            certificate_chain=(
                read_pem("tls_certificate", target.tls_certificate) if target.tls_certificate else None
            ),
        )
        inner = grpc.aio.secure_channel(target.address, credentials, options, interceptors=interceptors)
    else:
        inner = grpc.aio.insecure_channel(target.address, options, interceptors=interceptors)
    return _Channel(inner, target.address, tokens, tracer or NoOpTracer(), worker_stream_methods)


def read_pem(key: str, path: Path) -> bytes:
    """The content of a certificate or key file.

    Args:
        key: The configuration key that names it, for the message.
        path: The file.

    Raises:
        ConfigError: It cannot be read or is not PEM.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{key} {path} cannot be read: {error.strerror}; give a PEM file") from error
    if b"-----BEGIN " not in content:
        raise ConfigError(f"{key} {path} is not a PEM file: it has no BEGIN line")
    return content


class _Channel(grpc.aio.Channel):  # type: ignore[misc]  # gRPC ships no types
    """The real channel, with metadata and a span added to each call."""

    def __init__(
        self, inner: grpc.aio.Channel, address: str, tokens: TokenFile | None, tracer: Tracer,
        worker_stream_methods: frozenset[str],
    ) -> None:  # fmt: skip
        self._inner = inner
        self._address = address
        self._tokens = tokens
        self._tracer = tracer
        self._worker_stream_methods = worker_stream_methods

    async def __aenter__(self) -> "_Channel":
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def close(self, grace: float | None = None) -> None:
        await self._inner.close(grace)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self._inner.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self._inner.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        await self._inner.channel_ready()

    def unary_unary(self, method: str, *args: Any, **kwargs: Any) -> Callable[..., grpc.aio.Call]:
        return self._calls(method, self._inner.unary_unary(method, *args, **kwargs))

    def unary_stream(self, method: str, *args: Any, **kwargs: Any) -> Callable[..., grpc.aio.Call]:
        return self._calls(method, self._inner.unary_stream(method, *args, **kwargs))

    def stream_unary(self, method: str, *args: Any, **kwargs: Any) -> Callable[..., grpc.aio.Call]:
        return self._calls(method, self._inner.stream_unary(method, *args, **kwargs))

    def stream_stream(self, method: str, *args: Any, **kwargs: Any) -> Callable[..., grpc.aio.Call]:
        return self._calls(method, self._inner.stream_stream(method, *args, **kwargs))

    def _calls(self, path: str, multicallable: Callable[..., grpc.aio.Call]) -> Callable[..., grpc.aio.Call]:
        method = path.removeprefix("/")

        def start(
            request: Any = None, timeout: float | None = None, metadata: Any = None, **kwargs: Any
        ) -> grpc.aio.Call:
            entries = [*(metadata or ())]
            if self._tokens:
                entries.append(("authorization", f"Bearer {self._tokens.first()}"))
            if method in self._worker_stream_methods:
                return multicallable(request, timeout=timeout, metadata=entries, **kwargs)
            span = start_call_span(self._tracer, method, self._address, entries)
            try:
                call = multicallable(request, timeout=timeout, metadata=entries, **kwargs)
            except BaseException as error:
                span.fail(error)
                raise
            call.add_done_callback(span.end_with)
            return call

        return start
