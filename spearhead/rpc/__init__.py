"""gRPC servers and channels of all services."""

from spearhead.rpc.channel import create_channel
from spearhead.rpc.drain import run_until_signal
from spearhead.rpc.endpoint import EndpointConfig, TargetConfig
from spearhead.rpc.entry import main
from spearhead.rpc.errors import error_from_rpc
from spearhead.rpc.garbage import spare_what_is_there
from spearhead.rpc.health import HealthState
from spearhead.rpc.server import Server

__all__ = [
    "EndpointConfig",
    "HealthState",
    "Server",
    "TargetConfig",
    "create_channel",
    "error_from_rpc",
    "main",
    "run_until_signal",
    "spare_what_is_there",
]
