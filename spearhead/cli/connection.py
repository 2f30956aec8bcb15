"""Options that say which server a command talks to."""

import argparse
from pathlib import Path

from spearhead.client import DEFAULT_ADDRESS, TargetConfig


def add_connection_options(parser: argparse.ArgumentParser, *, default: str | None = DEFAULT_ADDRESS) -> None:
    """Adds ``--address`` and the TLS and token options."""
    group = parser.add_argument_group("connection")
    group.add_argument(
        "--address",
        default=default,
        metavar="ADDRESS",
        help="the scheduler: host:port or unix:/path" + (" (default %(default)s)" if default else ""),
    )
    group.add_argument("--tls-ca", type=Path, metavar="PEM", help="trust this authority; turns TLS on")
    group.add_argument("--tls-certificate", type=Path, metavar="PEM", help="client certificate (mTLS)")
    group.add_argument("--tls-key", type=Path, metavar="PEM", help="its key")
    group.add_argument("--token-file", type=Path, metavar="FILE", help="file with the bearer token")


def target_from(arguments: argparse.Namespace) -> TargetConfig:
    """The target that the options name."""
    return TargetConfig(
        address=arguments.address,
        tls_ca=arguments.tls_ca,
        tls_certificate=arguments.tls_certificate,
        tls_key=arguments.tls_key,
        token_file=arguments.token_file,
    )
