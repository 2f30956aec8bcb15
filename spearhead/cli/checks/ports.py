"""Whether the front door's address can be bound."""

import socket
from pathlib import Path

from spearhead.cli.checks.finding import Finding


def check_listen(listen: str) -> Finding:
    """Binds the address for a moment.

    Args:
        listen: "host:port" or "unix:/path".
    """
    try:
        _bind(listen)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return Finding(
            subject=f"address {listen}",
            ok=False,
            text=f"cannot be used: {reason}",
            remedy="stop what listens there, or choose another with --listen (port 0 = any free port)",
        )
    return Finding(subject=f"address {listen}", ok=True, text="free")


def _bind(listen: str) -> None:
    if listen.startswith("unix:"):
        path = Path(listen.removeprefix("unix:"))
        if path.exists():
            raise ValueError("the file exists")
        with socket.socket(socket.AF_UNIX) as probe:
            probe.bind(str(path))
        path.unlink()
        return
    host, separator, port = listen.rpartition(":")
    if not separator:
        raise ValueError("it is neither host:port nor unix:/path")
    if not 0 <= int(port) <= 65535:
        raise ValueError(f"port {port} is not within 0..65535")
    family, kind, _, _, address = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)
