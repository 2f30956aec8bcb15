"""Bearer tokens from a file that may be rotated while the service runs."""

import hmac
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spearhead.errors import ConfigError, Unauthenticated
from spearhead.rpc.caller import Caller, set_current_caller
from spearhead.rpc.calls import Call, Proceed
from spearhead.rpc.health import HEALTH_SERVICE
from spearhead.rpc.token_lines import parse_tokens

_logger = logging.getLogger("spearhead.rpc")


class TokenFile:
    """The tokens in a file, one a line, as :func:`~spearhead.rpc.token_lines.parse_tokens` reads it.

    The file is read again whenever it has changed. While it cannot be read, the tokens known last stay
    valid; an empty file lets nobody in. Tokens appear in no message and no log.
    """

    def __init__(self, path: Path, *, with_limits: bool = True) -> None:
        """Reads the file.

        Args:
            path: The file.
            with_limits: The file may set limits for its tokens.

        Raises:
            ConfigError: It cannot be read, is empty, or holds a line that cannot be understood.
        """
        self._path = path
        self._with_limits = with_limits
        try:
            self._version = _version(path)
            self._tokens = self._read()
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"token file {path} cannot be used: {error}; put one token on each line"
            ) from None
        if not self._tokens:
            raise ConfigError(f"token file {path} is empty; put one token on each line")

    def caller(self, authorization: str) -> Caller | None:
        """Whose token an ``authorization`` header holds; takes the same time for any wrong one.

        Returns:
            ``None`` when it holds no valid token.
        """
        scheme, _, token = authorization.partition(" ")
        presented = token.encode()
        found = None
        for known, caller in self._current().items():
            found = caller if hmac.compare_digest(presented, known) else found
        return found if scheme.lower() == "bearer" else None

    def first(self) -> str:
        """The token that a client presents; empty when the file has become empty."""
        return next((token.decode() for token in self._current()), "")

    def _read(self) -> Mapping[bytes, Caller]:
        return parse_tokens(self._path.read_bytes(), with_limits=self._with_limits)

    def _current(self) -> Mapping[bytes, Caller]:
        try:
            version = _version(self._path)
            if version != self._version:
                self._version = version
                self._tokens = self._read()
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


class AuthLayer:
    """Lets a call in when it has a valid token, and says whose call it is.

    Health is open to everybody, so that probes need no token.
    """

    def __init__(self, tokens: TokenFile) -> None:
        """Takes the tokens.

        Args:
            tokens: Who gets in.
        """
        self._tokens = tokens

    async def __call__(self, call: Call, proceed: Proceed) -> Any:
        """Runs the call, or raises :class:`Unauthenticated`."""
        if call.service != HEALTH_SERVICE:
            caller = self._tokens.caller(call.metadata.get("authorization", ""))
            if caller is None:
                raise Unauthenticated(
                    "this server wants a bearer token and the call has no valid one; set token_file to a "
                    "file with a token that the server knows"
                )
            set_current_caller(caller)
        return await proceed()
