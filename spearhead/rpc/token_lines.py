"""The lines of a token file: a bearer token each, and perhaps whose it is and how much it allows.

Messages name lines and limits. They never repeat what may be a part of a token.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import fields

from spearhead.rpc.caller import NO_LIMITS, Caller, CallerLimits

_READERS: dict[str, Callable[[str], int | float]] = {
    field.name: float if field.name == "requests_per_minute" else int for field in fields(CallerLimits)
}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_KEYS = ", ".join(("name", *_READERS))


def parse_tokens(content: bytes, *, with_limits: bool) -> Mapping[bytes, Caller]:
    """The tokens of a file, in its order.

    Args:
        content: The file: on each line ``TOKEN`` or ``TOKEN name=NAME max_running=2 …``, with the fields of
            :class:`CallerLimits`. Blank lines and lines that start with ``#`` do not count.
        with_limits: Limits may be there; otherwise they are refused, since nobody would keep them.

    Returns:
        Token to caller.

    Raises:
        ValueError: A line cannot be understood, or contradicts another one.
    """
    callers: dict[bytes, Caller] = {}
    for number, line in enumerate(content.splitlines(), start=1):
        words = line.split()
        if not words or words[0].startswith(b"#"):
            continue
        try:
            caller = _caller([_text(word) for word in words][1:])
            if caller.limits != NO_LIMITS and not with_limits:
                raise ValueError("this service keeps no limits; only the scheduler does")
            if callers.setdefault(words[0], caller) != caller:
                raise ValueError("its token is on an earlier line with another name or other limits")
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
    _check_names(callers)
    return callers


def _text(word: bytes) -> str:
    if any(not 0x21 <= byte <= 0x7E for byte in word):
        raise ValueError("it holds a character that is not printable ASCII")
    return word.decode()


def _caller(words: list[str]) -> Caller:
    settings: dict[str, str] = {}
    for word in words:
        key, separator, value = word.partition("=")
        if not separator or (key != "name" and key not in _READERS):
            raise ValueError(f"after its token, only key=value with one of {_KEYS} may follow")
        if key in settings:
            raise ValueError(f"{key} is there twice")
        settings[key] = value
    if not settings:
        return Caller()
    name = settings.pop("name", "")
    if not _NAME.fullmatch(name):
        raise ValueError(
            "it needs name=NAME of at most 64 letters, digits, '.', '_' and '-', by which metrics and errors "
            "call the token"
        )
    return Caller(name=name, limits=CallerLimits(**{key: _read(key, text) for key, text in settings.items()}))  # type: ignore[arg-type]  # the keys are the fields, read as their types


def _read(key: str, text: str) -> int | float:
    try:
        return _READERS[key](text)
    except ValueError:
        raise ValueError(f"{key} is {text!r}; it must be a number") from None


def _check_names(callers: Mapping[bytes, Caller]) -> None:
    limits: dict[str, CallerLimits] = {}
    for caller in callers.values():
        if caller.name.encode() in callers:
            raise ValueError("a name is also a token; names are shown to others")
        if caller.name and limits.setdefault(caller.name, caller.limits) != caller.limits:
            raise ValueError(f"the tokens named {caller.name!r} have different limits; give them the same")
