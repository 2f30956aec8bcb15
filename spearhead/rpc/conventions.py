"""Names of span attributes and rules of OpenTelemetry's RPC conventions, in one place."""

import grpc

from spearhead.rpc.health import HEALTH_SERVICE

RPC_SYSTEM = "rpc.system.name"
RPC_METHOD = "rpc.method"
# Called rpc.status_code in later drafts of the conventions.
STATUS_CODE = "rpc.response.status_code"
ERROR_TYPE = "error.type"

# Streams that live as long as their two processes: one span each would be hours long and seen at the end
# only. Their messages carry a trace context each instead.
WORKER_STREAM_METHODS = frozenset({"spearhead.v1.VerifyService/Step", "spearhead.v1.DraftService/Propose"})

# Probes and tools ask every few seconds; their spans would tell nothing.
UNTRACED_SERVICES = frozenset({HEALTH_SERVICE, "grpc.reflection.v1alpha.ServerReflection"})

_SERVER_ERRORS = frozenset(
    {
        grpc.StatusCode.UNKNOWN, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.INTERNAL, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DATA_LOSS,
    }
)  # fmt: skip


def is_server_error(code: grpc.StatusCode) -> bool:
    """Whether a server span with this status is an error; a caller's mistake is none."""
    return code in _SERVER_ERRORS


def call_attributes(method: str, address: str) -> dict[str, str | int]:
    """Attributes of a span for one RPC.

    Args:
        method: ``package.Service/Method``.
        address: The server's: ``host:port`` or ``unix:/path``.
    """
    attributes: dict[str, str | int] = {RPC_SYSTEM: "grpc", RPC_METHOD: method}
    if address.startswith("unix:"):
        attributes["server.address"] = address.removeprefix("unix:")
        return attributes
    host, _, port = address.rpartition("/")[2].rpartition(":")
    if host and port.isdigit():
        return attributes | {"server.address": host.strip("[]"), "server.port": int(port)}
    return attributes | {"server.address": address}
