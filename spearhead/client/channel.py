"""The synchronous channel, with the limits, keepalive and TLS of the asynchronous one."""

import grpc

from spearhead.rpc import TargetConfig
from spearhead.rpc.channel import read_pem
from spearhead.rpc.endpoint import channel_options


def create_sync_channel(target: TargetConfig) -> grpc.Channel:
    """A channel to ``target`` for use from threads.

    Raises:
        ConfigError: A certificate or key file cannot be used.
    """
    options = channel_options(target)
    if not target.tls_ca:
        return grpc.insecure_channel(target.address, options)
    key = read_pem("tls_key", target.tls_key) if target.tls_key else None
    chain = read_pem("tls_certificate", target.tls_certificate) if target.tls_certificate else None
    credentials = grpc.ssl_channel_credentials(read_pem("tls_ca", target.tls_ca), key, chain)
    return grpc.secure_channel(target.address, credentials, options)
