"""The one error tree: every error that a user can meet, with its gRPC code.

A service raises these classes, one interceptor turns them into a status with ``google.rpc`` details
(:mod:`spearhead.rpc`), and the client turns the status back into the same class.

The message of each error says what is wrong, the value, the limit, and what to do about it.
"""

from dataclasses import dataclass

import grpc

DOMAIN = "spearhead.v1"


class SpearheadError(Exception):
    """Base class. On the wire: INTERNAL.

    Attributes:
        code: The gRPC status code.
        message: What, value, limit, remedy.
        retry_after_s: Seconds after which a retry makes sense; ``None`` = not known.
        field: Path of the request field at fault, such as ``sampling.temperature``; empty = none.
    """

    code: grpc.StatusCode = grpc.StatusCode.INTERNAL

    def __init__(self, message: str, *, retry_after_s: float | None = None, field: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.retry_after_s = retry_after_s
        self.field = field

    @property
    def reason(self) -> str:
        """The class name as an ``ErrorInfo.reason``, such as ``INVALID_REQUEST``."""
        name = type(self).__name__
        return "".join("_" + c if c.isupper() and i else c for i, c in enumerate(name)).upper()


class InvalidRequest(SpearheadError):
    """The request breaks the contract; sending it again cannot help."""

    code = grpc.StatusCode.INVALID_ARGUMENT


class SequenceNotFound(SpearheadError):
    """No such sequence or request."""

    code = grpc.StatusCode.NOT_FOUND


class RequestExists(SpearheadError):
    """A running request has this request id."""

    code = grpc.StatusCode.ALREADY_EXISTS


class CacheMiss(SpearheadError):
    """The worker does not hold the committed tokens; prefill again."""

    code = grpc.StatusCode.FAILED_PRECONDITION


class PrecisionUnavailable(SpearheadError):
    """Full precision was asked for and its weights are not loaded."""

    code = grpc.StatusCode.FAILED_PRECONDITION


class ModelMismatch(SpearheadError):
    """Two services do not serve models that can work together."""

    code = grpc.StatusCode.FAILED_PRECONDITION


class Overloaded(SpearheadError):
    """A limit on requests, tokens, pages or buffers is reached; retry later."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED


class QuotaExceeded(Overloaded):
    """More than the caller's bearer token allows, whatever room the server has."""


class SlowReader(Overloaded):
    """The client does not read its stream; what was generated for it can be kept no longer."""


class NotReady(SpearheadError):
    """Starting, draining, or a worker that is needed is away; retry later."""

    code = grpc.StatusCode.UNAVAILABLE


class RankFailure(SpearheadError):
    """A tensor-parallel rank is lost or stuck."""

    code = grpc.StatusCode.UNAVAILABLE


class DeadlineExceeded(SpearheadError):
    """The deadline of the request passed."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED


class Cancelled(SpearheadError):
    """The caller cancelled the request."""

    code = grpc.StatusCode.CANCELLED


class Unauthenticated(SpearheadError):
    """No valid credentials."""

    code = grpc.StatusCode.UNAUTHENTICATED


class StartupError(SpearheadError):
    """Start-up only, exit code 2, never on the wire: the service cannot run as configured."""


class ConfigError(StartupError):
    """A configuration file, override or command line is wrong."""


class CheckpointError(StartupError):
    """A model folder or file cannot be used."""


class CalibrationError(StartupError):
    """Statistics, training or evaluation met numbers or files that it cannot use."""


_BY_REASON: dict[str, type[SpearheadError]] = {
    cls("").reason: cls
    for cls in (
        SpearheadError, InvalidRequest, SequenceNotFound, RequestExists, CacheMiss, PrecisionUnavailable,
        ModelMismatch, Overloaded, QuotaExceeded, SlowReader, NotReady, RankFailure, DeadlineExceeded,
        Cancelled, Unauthenticated,
    )
}  # fmt: skip

_BY_CODE: dict[grpc.StatusCode, type[SpearheadError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequest,
    grpc.StatusCode.NOT_FOUND: SequenceNotFound,
    grpc.StatusCode.ALREADY_EXISTS: RequestExists,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Overloaded,
    grpc.StatusCode.UNAVAILABLE: NotReady,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.CANCELLED: Cancelled,
    grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorDetails:
    """What the wire carries beside code and message."""

    reason: str = ""
    retry_after_s: float | None = None
    field: str = ""


def from_status(code: grpc.StatusCode, message: str, details: ErrorDetails) -> SpearheadError:
    """The error that the server raised, rebuilt from its status.

    Falls back from the reason to the code, so that statuses made by gRPC itself (a refused connection,
    a deadline) become the matching class too.
    """
    cls = _BY_REASON.get(details.reason) or _BY_CODE.get(code, SpearheadError)
    error = cls(message, retry_after_s=details.retry_after_s, field=details.field)
    error.code = code
    return error
