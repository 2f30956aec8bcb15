"""Binds a gRPC server to an address, and says plainly why when it cannot."""

import logging
import socket
import stat
from pathlib import Path

import grpc

from spearhead.errors import ConfigError

_logger = logging.getLogger("spearhead.rpc")


def bind(server: grpc.aio.Server, key: str, listen: str, credentials: grpc.ServerCredentials | None) -> str:
    """Adds a port to a server that has not started.

    Args:
        server: The server.
        key: The configuration key that holds the address, for messages.
        listen: ``host:port`` or ``unix:/path``. The socket file that a dead process left is replaced.
        credentials: ``None`` = plaintext.

    Returns:
        The bound address, with the port that was chosen.

    Raises:
        ConfigError: The address is taken, forbidden or not of this machine.
    """
    if listen.startswith("unix:"):
        _clear_stale_socket(key, listen)
    # Asked first: gRPC keeps the reason from us and writes a line of its own on stderr.
    if reason := _why_not(listen):
        raise _bind_error(key, listen, reason)
    try:
        if credentials:
            port = server.add_secure_port(listen, credentials)
        else:
            port = server.add_insecure_port(listen)
    except RuntimeError as error:
        raise _bind_error(key, listen, str(error)) from error
    if listen.startswith("unix:"):
        return listen
    return f"{listen.rpartition(':')[0]}:{port}"


def _bind_error(key: str, listen: str, why: str) -> ConfigError:
    remedy = "another path" if listen.startswith("unix:") else "another address (port 0 = any free port)"
    return ConfigError(f"{key} {listen} cannot be bound: {why}; stop what uses it, or set {key} to {remedy}")


def _clear_stale_socket(key: str, listen: str) -> None:
    # gRPC removes whatever socket is there, also that of a living server, so this must be looked at first.
    path = Path(listen.removeprefix("unix:"))
    try:
        mode = path.lstat().st_mode
    except OSError:
        return
    if not stat.S_ISSOCK(mode):
        raise _bind_error(key, listen, "the file exists and is no socket")
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            _logger.info("replacing the socket %s of a process that is gone", path)
            path.unlink()
            return
        except OSError as error:
            raise _bind_error(key, listen, error.strerror or str(error)) from None
    raise _bind_error(key, listen, "a running process listens there")


def _why_not(listen: str) -> str:
    """The system's reason against binding ``listen``; empty when there is none."""
    try:
        if listen.startswith("unix:"):
            return _try_unix(Path(listen.removeprefix("unix:")))
        host, _, port = listen.rpartition(":")
        family, kind, _, _, address = socket.getaddrinfo(
            host.strip("[]"), int(port), type=socket.SOCK_STREAM
        )[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _try_unix(path: Path) -> str:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.bind(str(path))
    path.unlink()
    return ""
