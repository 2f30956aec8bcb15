"""What each caller has under way, and whether its bearer token allows more."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from scheduler_service.request import Request
from scheduler_service.spec import GenerationSpec
from spearhead.errors import QuotaExceeded
from spearhead.rpc.caller import Caller

_RETRY_S = 1.0
_MINUTE_S = 60.0
_ROUNDING = 1e-9


@dataclass(slots=True)
class Bucket:
    """A token bucket, in requests; full at first.

    Attributes:
        level: How many are there.
        time_s: Monotonic time at which they were.
    """

    level: float
    time_s: float

    def refill(self, per_minute: float, now_s: float) -> float:
        """Lets in what came since the last time: a minute's worth fits, and at least one request.

        Returns:
            Seconds until there is one request; 0 = there is one.
        """
        gained = (now_s - self.time_s) * per_minute / _MINUTE_S
        self.level, self.time_s = min(self.level + gained, max(1.0, per_minute)), now_s
        missing = 1.0 - self.level
        return missing * _MINUTE_S / per_minute if missing > _ROUNDING else 0.0


@dataclass(slots=True)
class Account:
    """The books of one caller.

    Attributes:
        waiting: Its requests that wait.
        running: Its requests that run.
        requests: Those that were let in, ever.
        output_tokens: What those that ended had generated.
        refused: Requests that were not let in, by the limit that they met.
    """

    waiting: int = 0
    running: int = 0
    requests: int = 0
    output_tokens: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    bucket: Bucket | None = None


class Callers:
    """Owns the accounts, by the caller's name. A caller without a name has neither account nor limits.

    Limits that change hold for requests that arrive later.

    Args:
        on_room: Called when a request may run that had to wait for another one of its caller.
    """

    def __init__(self, on_room: Callable[[], None] = lambda: None) -> None:
        self._on_room = on_room
        self._accounts: dict[str, Account] = {}

    @property
    def accounts(self) -> Mapping[str, Account]:
        """All that ever had a request."""
        return self._accounts

    def check(self, caller: Caller, *, free_places: int, now_s: float) -> None:
        """Refuses a request before its prompt is known.

        Args:
            caller: Whose request it is.
            free_places: Requests that the batch could take at once.
            now_s: Monotonic time.

        Raises:
            QuotaExceeded: The caller has used up what it may have.
        """
        if caller.name:
            self._check_waiting(caller, free_places)
            self._check_rate(caller, now_s)

    def admit(self, caller: Caller, spec: GenerationSpec, *, free_places: int, now_s: float) -> None:
        """Lets a request in, and counts it; arguments as for :meth:`check`.

        Raises:
            QuotaExceeded: The caller has used up what it may have, or the request asks for more than it may.
        """
        if not caller.name:
            return
        self._check_spec(caller, spec)
        self.check(caller, free_places=free_places, now_s=now_s)
        account = self._account(caller.name)
        account.requests += 1
        if account.bucket is not None:
            account.bucket.level -= 1

    def may_run(self, request: Request) -> bool:
        """Whether its caller may have one more running request."""
        most = request.caller.limits.max_running
        return most is None or self._account(request.caller.name).running < most

    def waits(self, request: Request) -> None:
        """A new request waits."""
        if request.caller.name:
            self._account(request.caller.name).waiting += 1

    def runs(self, request: Request) -> None:
        """A waiting request runs."""
        if request.caller.name:
            account = self._account(request.caller.name)
            account.waiting -= 1
            account.running += 1

    def put_back(self, request: Request) -> None:
        """A running request waits again."""
        if request.caller.name:
            account = self._account(request.caller.name)
            account.waiting += 1
            account.running -= 1

    def ended(self, request: Request, *, ran: bool) -> None:
        """A request is gone; ``ran``: it was running until now."""
        if not request.caller.name:
            return
        account = self._account(request.caller.name)
        account.output_tokens += request.output.token_count
        if not ran:
            account.waiting -= 1
            return
        account.running -= 1
        if account.waiting and request.caller.limits.max_running is not None:
            self._on_room()

    def check_integrity(self, *, waiting: Iterable[Request], running: Iterable[Request]) -> None:
        """Checks that the books agree with the requests that wait and run."""
        waits, runs = (Counter(r.caller.name for r in requests) for requests in (waiting, running))
        for name, account in self._accounts.items():
            assert (account.waiting, account.running) == (waits[name], runs[name]), f"the books of {name!r}"

    def _account(self, name: str) -> Account:
        return self._accounts.setdefault(name, Account())

    def _check_spec(self, caller: Caller, spec: GenerationSpec) -> None:
        limits = caller.limits
        for field_name, value, limit_name, limit in (
            ("sampling.max_tokens", spec.max_tokens, "max_output_tokens", limits.max_output_tokens),
            ("priority", spec.priority, "max_priority", limits.max_priority),
        ):
            if limit is not None and value > limit:
                problem = f"{field_name} is {value}, and bearer token {caller.name!r} allows at most {limit}"
                remedy = f"ask for less, or have {limit_name} of the token raised"
                raise self._refusal(caller, limit_name, f"{problem}; {remedy}", field=field_name)

    def _check_waiting(self, caller: Caller, free_places: int) -> None:
        limits, account = caller.limits, self._account(caller.name)
        if limits.max_waiting is None:
            return
        places = free_places
        if limits.max_running is not None:
            places = min(places, max(0, limits.max_running - account.running))
        if account.waiting >= limits.max_waiting + places:
            running = "" if limits.max_running is None else f" of at most {limits.max_running}"
            raise self._refusal(
                caller,
                "max_waiting",
                f"bearer token {caller.name!r} has {account.running} requests running{running} and "
                f"{account.waiting} waiting, and {limits.max_waiting} may wait; try again when one has "
                "ended, or have max_waiting of the token raised",
                retry_after_s=_RETRY_S,
            )

    def _check_rate(self, caller: Caller, now_s: float) -> None:
        rate, account = caller.limits.requests_per_minute, self._account(caller.name)
        if rate is None:
            account.bucket = None
            return
        if account.bucket is None:
            account.bucket = Bucket(level=max(1.0, rate), time_s=now_s)
        wait_s = account.bucket.refill(rate, now_s)
        if wait_s > 0:
            raise self._refusal(
                caller,
                "requests_per_minute",
                f"bearer token {caller.name!r} has used up its {rate:g} requests a minute; try again in "
                f"{wait_s:.1f} s, or have requests_per_minute of the token raised",
                retry_after_s=wait_s,
            )

    def _refusal(
        self,
        caller: Caller,
        limit_name: str,
        message: str,
        *,
        retry_after_s: float | None = None,
        field: str = "",
    ) -> QuotaExceeded:
        self._account(caller.name).refused[limit_name] += 1
        return QuotaExceeded(message, retry_after_s=retry_after_s, field=field)
