"""Who calls: the name behind a bearer token, and how much it may ask for."""

import math
from contextvars import ContextVar
from dataclasses import dataclass, fields

MAX_PRIORITY = 100
_LOWEST = {"max_waiting": 0, "max_priority": -MAX_PRIORITY}


@dataclass(frozen=True, slots=True, kw_only=True)
class CallerLimits:
    """What a caller may ask for; ``None`` = no limit of its own.

    Attributes:
        max_running: Requests that run at once, at least 1; more of them wait.
        max_waiting: Requests that wait, beside those for which a place is free, at least 0.
        requests_per_minute: A bucket of so many requests, which refills evenly; more than 0.
        max_output_tokens: Most tokens that one request may generate, at least 1.
        max_priority: Highest priority of a request, -100..100.
    """

    max_running: int | None = None
    max_waiting: int | None = None
    requests_per_minute: float | None = None
    max_output_tokens: int | None = None
    max_priority: int | None = None

    def __post_init__(self) -> None:
        for name in (field.name for field in fields(self)):
            value, lowest = getattr(self, name), _LOWEST.get(name, 1)
            if value is None:
                continue
            if name == "requests_per_minute":
                if not 0 < value < math.inf:
                    raise ValueError(f"{name} is {value:g}; it must be more than 0")
            elif value < lowest:
                raise ValueError(f"{name} is {value}; it must be at least {lowest}")
        if self.max_priority is not None and self.max_priority > MAX_PRIORITY:
            raise ValueError(f"max_priority is {self.max_priority}; it must be at most {MAX_PRIORITY}")


NO_LIMITS = CallerLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who a valid token stands for.

    Attributes:
        name: Shown in metrics, traces and errors; never a secret. Empty = the token has no name.
        limits: What it may ask for.
    """

    name: str = ""
    limits: CallerLimits = NO_LIMITS


ANONYMOUS = Caller()
"""Whoever calls a server without tokens, or with a token that has no name."""

_current: ContextVar[Caller] = ContextVar("spearhead_caller", default=ANONYMOUS)


def current_caller() -> Caller:
    """Whose call the present task handles."""
    return _current.get()


def set_current_caller(caller: Caller) -> None:
    """Says whose call the present task handles, until its end: gRPC runs each call in a task of its own."""
    _current.set(caller)
