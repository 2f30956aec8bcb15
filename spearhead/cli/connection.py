"""Options that say which server a command talks to, and how both prove who they are."""

import argparse
from pathlib import Path

from spearhead.client import DEFAULT_ADDRESS, TargetConfig
from spearhead.errors import ConfigError

CREDENTIALS = ("tls_ca", "tls_name", "tls_certificate", "tls_key", "token_file")


def add_connection_options(parser: argparse.ArgumentParser, *, default: str | None = DEFAULT_ADDRESS) -> None:
    """Adds ``--address`` and the TLS and token options."""
    group = parser.add_argument_group("connection")
    group.add_argument(
        "--address",
        default=default,
        metavar="ADDRESS",
        help="the scheduler: host:port or unix:/path" + (" (default %(default)s)" if default else ""),
    )
    add_credential_options(group)


def add_credential_options(group: argparse._ArgumentGroup) -> None:
    """Adds the TLS and token options, :data:`CREDENTIALS`."""
    group.add_argument("--tls-ca", type=Path, metavar="PEM", help="trust this authority; turns TLS on")
    group.add_argument(
        "--tls-name",
        metavar="NAME",
        help="name in the server's certificate (default: the host of its address)",
    )
    group.add_argument("--tls-certificate", type=Path, metavar="PEM", help="client certificate (mTLS)")
    group.add_argument("--tls-key", type=Path, metavar="PEM", help="its key")
    group.add_argument("--token-file", type=Path, metavar="FILE", help="file with the bearer token")


def target_from(arguments: argparse.Namespace) -> TargetConfig:
    """The target that ``--address`` and the credentials name.

    Raises:
        ConfigError: The credentials do not go together.
    """
    return target_at(arguments.address, arguments)


def target_at(address: str, arguments: argparse.Namespace) -> TargetConfig:
    """The peer at ``address``, with the credentials that the options name.

    Raises:
        ConfigError: The credentials do not go together.
    """
    try:
        return TargetConfig(address=address, **{name: vars(arguments)[name] for name in CREDENTIALS})
    except ValueError as error:
        raise ConfigError(f"connection to {address}: {error}") from error
