"""Bearer tokens from a file that may be rotated while the service runs."""

import hmac
import logging
from pathlib import Path
from typing import Any

from spearhead.errors import ConfigError, Unauthenticated
from spearhead.rpc.calls import Call, Proceed
from spearhead.rpc.health import HEALTH_SERVICE

_logger = logging.getLogger("spearhead.rpc")


class TokenFile:
    """The tokens in a file, one a line; blank lines and lines that start with ``#`` do not count.

    The file is read again whenever it has changed. While it cannot be read, the tokens known last stay
    valid; an empty file lets nobody in. Tokens appear in no message and no log.
    """

    def __init__(self, path: Path) -> None:
        """Reads the file.

        Args:
            path: The file.

        Raises:
            ConfigError: It cannot be read, is empty, or holds a token that is not printable ASCII.
        """
        self._path = path
        try:
            self._version = _version(path)
            self._tokens = _parse(path)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"token file {path} cannot be used: {error}; put one token on each line"
            ) from None
        if not self._tokens:
            raise ConfigError(f"token file {path} is empty; put one token on each line")

    def accepts(self, authorization: str) -> bool:
        """Whether an ``authorization`` header holds a valid token; takes the same time for any wrong one."""
        scheme, _, token = authorization.partition(" ")
        presented = token.encode()
        found = False
        for known in self._current():
            found |= hmac.compare_digest(presented, known)
        return found and scheme.lower() == "bearer"

    def first(self) -> str:
        """The token that a client presents; empty when the file has become empty."""
        tokens = self._current()
        return tokens[0].decode() if tokens else ""

    def _current(self) -> tuple[bytes, ...]:
        try:
            version = _version(self._path)
            if version != self._version:
                self._version = version
                self._tokens = _parse(self._path)
                _logger.info("token file %s has changed: %d tokens", self._path, len(self._tokens))
        except (OSError, ValueError) as error:
            if self._version is not None:
                _logger.warning(
                    "token file %s cannot be read, its last tokens stay valid: %s", self._path, error
                )
            self._version = None
        return self._tokens


def _version(path: Path) -> tuple[int, int, int] | None:
    status = path.stat()
    return status.st_mtime_ns, status.st_size, status.st_ino


def _parse(path: Path) -> tuple[bytes, ...]:
    lines = [line.strip() for line in path.read_bytes().splitlines()]
    tokens = tuple(line for line in lines if line and not line.startswith(b"#"))
    if any(not 0x21 <= byte <= 0x7E for token in tokens for byte in token):
        raise ValueError("a token holds a character that is not printable ASCII")
    return tokens


class AuthLayer:
    """Lets a call in when it has a valid token. Health is open to everybody, so that probes need none."""

    def __init__(self, tokens: TokenFile) -> None:
        """Takes the tokens.

        Args:
            tokens: Who gets in.
        """
        self._tokens = tokens

    async def __call__(self, call: Call, proceed: Proceed) -> Any:
        """Runs the call, or raises :class:`Unauthenticated`."""
        if call.service != HEALTH_SERVICE and not self._tokens.accepts(
            call.metadata.get("authorization", "")
        ):
            raise Unauthenticated(
                "this server wants a bearer token and the call has no valid one; set token_file to a file "
                "with a token that the server knows"
            )
        return await proceed()
