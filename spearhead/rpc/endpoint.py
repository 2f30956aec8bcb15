"""Where a service listens, where its peer is, and the channel options that both ends must agree on."""

from dataclasses import dataclass
from pathlib import Path

MAX_MESSAGE_BYTES = 64 << 20

# A pair: a client that pings more often than the server allows is sent away (ENHANCE_YOUR_CALM), in the
# middle of a long prefill for example, since a silent stream is when pings happen.
CLIENT_KEEPALIVE_MS = 30_000
SERVER_MIN_PING_INTERVAL_MS = 10_000
_KEEPALIVE_TIMEOUT_MS = 10_000
_LONGEST_S = 2_000_000  # gRPC counts milliseconds in 31 bits.
_RECONNECT_MIN_MS, _RECONNECT_MAX_MS = 200, 2_000

_ROUND_ROBIN = '{"loadBalancingConfig": [{"round_robin": {}}]}'

Options = list[tuple[str, int | str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointConfig:
    """Where a service listens and whom it lets in.

    Attributes:
        listen: ``host:port`` (port 0 = any free one) or ``unix:/path``.
        tls_certificate: PEM certificate chain; turns TLS on, together with ``tls_key``.
        tls_key: PEM private key.
        tls_client_ca: PEM certificates of those who sign client certificates; turns mutual TLS on.
        token_file: One bearer token a line, as :mod:`spearhead.rpc.token_lines` reads it. Read again when
            the file changes.
        health_listen: Second, plaintext address that serves ``grpc.health.v1`` alone, for probes that speak
            no TLS.
        max_message_bytes: Largest message, either way.
        drain_s: Seconds that running RPCs get to finish after SIGTERM.
        max_connection_age_s: A connection takes no new RPC after about so many seconds, so that
            clients look addresses up again; 0 = it may last for ever.
        max_connection_age_grace_s: Running RPCs of such a connection get so many seconds more.
    """

    listen: str = "127.0.0.1:0"
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None
    token_file: Path | None = None
    health_listen: str | None = None
    max_message_bytes: int = MAX_MESSAGE_BYTES
    drain_s: float = 30.0
    max_connection_age_s: float = 0.0
    max_connection_age_grace_s: float = 3600.0

    def __post_init__(self) -> None:
        for name, address in (("listen", self.listen), ("health_listen", self.health_listen)):
            if address is not None:
                _check_address(name, address)
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("tls_certificate and tls_key belong together; set both or neither")
        if self.tls_client_ca and not self.tls_certificate:
            raise ValueError("tls_client_ca needs TLS; set tls_certificate and tls_key too")
        _check_message_bytes(self.max_message_bytes)
        for name in ("drain_s", "max_connection_age_s", "max_connection_age_grace_s"):
            if not 0 <= getattr(self, name) <= _LONGEST_S:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be 0 to {_LONGEST_S} seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetConfig:
    """A peer, and how to prove who we are.

    Attributes:
        address: ``host:port`` or ``unix:/path`` (or any gRPC target, such as ``dns:///name:port``).
        tls_ca: PEM certificates to trust; turns TLS on.
        tls_name: Name that the peer's certificate must carry; ``None`` = the host in ``address``.
        tls_certificate: PEM client certificate chain, for mutual TLS, together with ``tls_key``.
        tls_key: PEM private key.
        token_file: Its first line is sent as bearer token. Read again when the file changes.
        max_message_bytes: Largest message, either way.
    """

    address: str
    tls_ca: Path | None = None
    tls_name: str | None = None
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    token_file: Path | None = None
    max_message_bytes: int = MAX_MESSAGE_BYTES

    def __post_init__(self) -> None:
        if not self.address:
            raise ValueError("address is empty; give host:port or unix:/path")
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("tls_certificate and tls_key belong together; set both or neither")
        for name in ("tls_certificate", "tls_name"):
            if getattr(self, name) and not self.tls_ca:
                raise ValueError(f"{name} needs TLS; set tls_ca too")
        _check_message_bytes(self.max_message_bytes)


def _check_address(name: str, address: str) -> None:
    if address.startswith("unix:"):
        if not address.removeprefix("unix:"):
            raise ValueError(f"{name} is {address!r}; it must be unix:/path")
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{name} is {address!r}; it must be host:port or unix:/path, such as 127.0.0.1:7000")


def _check_message_bytes(count: int) -> None:
    if not 1 <= count < 1 << 31:
        raise ValueError(f"max_message_bytes is {count}; it must be between 1 and {(1 << 31) - 1}")


def is_local(address: str) -> bool:
    """Whether plaintext to ``address`` stays on this machine."""
    if address.startswith(("unix:", "unix-abstract:")):
        return True
    host = address.rpartition("/")[2].rpartition(":")[0].strip("[]")
    return host in ("localhost", "::1") or host.startswith("127.")


def server_options(endpoint: EndpointConfig) -> Options:
    """gRPC options of a server."""
    aged: Options = []
    if endpoint.max_connection_age_s:
        aged = [
            ("grpc.max_connection_age_ms", max(1, int(endpoint.max_connection_age_s * 1000))),
            ("grpc.max_connection_age_grace_ms", int(endpoint.max_connection_age_grace_s * 1000)),
        ]
    return [
        *_message_limits(endpoint.max_message_bytes),
        *aged,
        ("grpc.so_reuseport", 0),  # otherwise two services share a port and each gets half the calls
        ("grpc.http2.min_ping_interval_without_data_ms", SERVER_MIN_PING_INTERVAL_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.keepalive_time_ms", CLIENT_KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
    ]


def channel_options(target: TargetConfig) -> Options:
    """gRPC options of a channel.

    Calls to an address that names several servers (``dns:///name:port``, ``ipv4:a:1,b:2``) go to them in
    turn; one that is away is passed over.
    """
    several = target.address.startswith(("dns:", "ipv4:", "ipv6:"))
    balanced: Options = [("grpc.service_config", _ROUND_ROBIN)] if several else []
    named: Options = [("grpc.ssl_target_name_override", target.tls_name)] if target.tls_name else []
    return [
        *_message_limits(target.max_message_bytes),
        *named,
        *balanced,
        ("grpc.keepalive_time_ms", CLIENT_KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        # gRPC's own back-off grows to two minutes: too long for a worker that restarts in seconds.
        ("grpc.initial_reconnect_backoff_ms", _RECONNECT_MIN_MS),
        ("grpc.min_reconnect_backoff_ms", _RECONNECT_MIN_MS),
        ("grpc.max_reconnect_backoff_ms", _RECONNECT_MAX_MS),
        ("grpc.use_local_subchannel_pool", 1),  # no back-off inherited from another channel
    ]


def _message_limits(max_message_bytes: int) -> Options:
    return [
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", max_message_bytes),
    ]
