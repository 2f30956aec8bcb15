"""Where a client connects to, and the texts for what can go wrong there."""

from spearhead.client.request import RequestOptions
from spearhead.errors import NotReady, SpearheadError
from spearhead.rpc import TargetConfig

Metadata = tuple[tuple[str, str], ...]
DEFAULT_ADDRESS = "127.0.0.1:50051"


def target_of(target: str | TargetConfig) -> TargetConfig:
    """A bare address as a configuration without TLS and token."""
    return TargetConfig(address=target) if isinstance(target, str) else target


def call_metadata(options: RequestOptions) -> Metadata:
    """Metadata of a ``Generate`` call: the caller's trace context, when given."""
    traceparent = options.get("traceparent", "")
    return (("traceparent", traceparent),) if traceparent else ()


def incomplete_answer(address: str) -> SpearheadError:
    """The stream ended without a ``finished`` message, which the contract forbids."""
    return SpearheadError(
        f"the answer from {address} ended without its last message; look at the server's log"
    )


def not_ready(address: str, timeout_s: float, last_seen: str) -> NotReady:
    """The server did not become ready in time."""
    return NotReady(f"the server at {address} is not ready after {timeout_s:g} s: {last_seen}")
