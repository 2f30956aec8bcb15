"""The addresses of the workers of one kind: configured, or found behind a DNS name."""

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

from scheduler_service.config import WorkersConfig
from spearhead.errors import NotReady
from spearhead.rpc import TargetConfig

_logger = logging.getLogger("spearhead.scheduler")

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""(host name, port) to the addresses behind it, ``ip:port`` each."""


class Addresses:
    """Where the workers of one kind are now.

    Args:
        config: Names them.
        resolve: Looks host names up.

    Attributes:
        known: The addresses, in the configured order; those behind a name are sorted.
        dynamic: Whether they may change.
    """

    def __init__(self, config: WorkersConfig, resolve: Resolve | None = None) -> None:
        self._config = config
        self._resolve = resolve or look_up
        self._names = {name: _name_and_port(name) for name in config.all_addresses if _is_name(name)}
        self._found: dict[str, Sequence[str]] = dict.fromkeys(self._names, ())
        self.dynamic = bool(self._names)
        self.known: tuple[str, ...] = self._all()

    async def refresh(self) -> None:
        """Looks the names up. A name that cannot be resolved keeps the addresses that it had."""
        for name, (host, port) in self._names.items():
            try:
                self._found[name] = sorted(await self._resolve(host, port))
            except OSError as error:
                _logger.warning("%s cannot be resolved: %s", host, error)
        self.known = self._all()

    def target(self, address: str) -> TargetConfig:
        """How to connect to one of them; a certificate must name what is configured, not what was found."""
        names = [self._names[name][0] for name, found in self._found.items() if address in found]
        return self._config.target(address, found_by=names[0] if names else None)

    def _all(self) -> tuple[str, ...]:
        found = [address for name in self._config.all_addresses for address in self._found.get(name, (name,))]
        return tuple(dict.fromkeys(found))


class Shared:
    """Divides the workers of one kind among several users, each of which uses one at a time.

    Args:
        addresses: Where they are.
    """

    def __init__(self, addresses: Addresses) -> None:
        self._addresses = addresses
        self._used: dict[int, str] = {}
        self._tried: dict[int, set[str]] = {}

    def choose(self, user: int) -> TargetConfig:
        """The worker that ``user`` is to try next; call it when a new connection is to be made.

        Of those that it has not tried since it tried them all, the one with the fewest users: a worker that
        was just lost comes last, and one that is away does not keep anybody from the others.

        Raises:
            NotReady: No address is known.
        """
        known = self._addresses.known
        if not known:
            raise NotReady("no address is known; is anything behind its name in DNS?")
        before, tried = self._used.pop(user, None), self._tried.setdefault(user, set())
        if tried.issuperset(known):
            tried.intersection_update({before})
        users = Counter(self._used.values())
        chosen = min(known, key=lambda address: (address in tried, users[address]))
        tried.add(chosen)
        self._used[user] = chosen
        return self._addresses.target(chosen)

    def leave(self, user: int) -> None:
        """The user is gone."""
        self._used.pop(user, None)
        self._tried.pop(user, None)


async def look_up(host: str, port: int) -> Sequence[str]:
    """The addresses behind a host name.

    Raises:
        OSError: The name cannot be resolved.
    """
    answers = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(
        dict.fromkeys(_join(family, str(address[0]), str(address[1])) for family, _, _, _, address in answers)
    )


def _join(family: int, host: str, port: str) -> str:
    return f"[{host}]:{port}" if family == socket.AF_INET6 else f"{host}:{port}"


def _is_name(address: str) -> bool:
    return address.startswith("dns:")


def _name_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition("/")[2].removeprefix("dns:").rpartition(":")
    return host.strip("[]"), int(port)
