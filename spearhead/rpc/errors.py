"""Errors on the wire: a SpearheadError becomes a status with ``google.rpc`` details, and the reverse."""

import asyncio
import logging
import math
from collections.abc import Iterable
from typing import Any

import grpc
from google.protobuf import any_pb2
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2, status_pb2
from opentelemetry import trace

from spearhead import errors
from spearhead.rpc.calls import Call, Proceed

_DETAILS_KEY = "grpc-status-details-bin"
# A status travels in HTTP/2 headers, twice, percent-encoded and in base64; 8 KiB is all there may be.
_MAX_MESSAGE_BYTES = 1024

_logger = logging.getLogger("spearhead.rpc")


async def error_layer(call: Call, proceed: Proceed) -> Any:
    """Turns what a handler raises into the call's status; a cancelled call stays cancelled."""
    try:
        return await proceed()
    except grpc.aio.AbortError:
        raise
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        # Nobody cancelled the call: the handler waited for something that was. gRPC would never answer.
        failure: errors.SpearheadError = _internal_error(call, error)
    except errors.StartupError as error:  # never on the wire: its text may name files of this machine
        failure = _internal_error(call, error)
    except errors.SpearheadError as error:
        _logger.debug("%s: %s: %s", call.method, error.reason, error.message)
        failure = error
    except Exception as error:
        failure = _internal_error(call, error)
    message = _shortened(failure.message)
    details = (_DETAILS_KEY, status_details(failure, message).SerializeToString())
    await call.context.abort(failure.code, message, (details,))
    raise AssertionError("abort returned")


def _internal_error(call: Call, error: BaseException) -> errors.SpearheadError:
    _logger.error("%s failed: %s", call.method, type(error).__name__, exc_info=error)
    span = trace.get_current_span()
    span.record_exception(error)
    context = span.get_span_context()
    where = f" (trace {trace.format_trace_id(context.trace_id)})" if context.is_valid else ""
    return errors.SpearheadError(f"{call.method} failed inside the server; its log says why{where}")


def _shortened(message: str) -> str:
    encoded = message.encode()
    if len(encoded) <= _MAX_MESSAGE_BYTES:
        return message
    return encoded[:_MAX_MESSAGE_BYTES].decode(errors="ignore") + " …"


def status_details(error: errors.SpearheadError, message: str) -> status_pb2.Status:
    """The ``google.rpc.Status`` of an error.

    Args:
        error: Its class becomes the reason of an ``ErrorInfo``, its ``field`` a ``BadRequest``, its
            ``retry_after_s`` a ``RetryInfo``.
        message: The text, short enough for a header.
    """
    details: list[Message] = [error_details_pb2.ErrorInfo(reason=error.reason, domain=errors.DOMAIN)]
    if error.field:
        violation = error_details_pb2.BadRequest.FieldViolation(field=error.field, description=message)
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    if error.retry_after_s is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromNanoseconds(max(0, math.ceil(error.retry_after_s * 1e9)))
        details.append(retry)
    status = status_pb2.Status(code=error.code.value[0], message=message)
    for detail in details:
        packed = any_pb2.Any()
        packed.Pack(detail)
        status.details.append(packed)
    return status


def error_from_rpc(error: grpc.aio.AioRpcError | grpc.RpcError, address: str = "") -> errors.SpearheadError:
    """The error that the server raised, or the class that fits a status made by gRPC itself.

    Args:
        error: What a stub raised, of grpc.aio or of the synchronous API.
        address: The peer, for messages that gRPC leaves without it.

    Returns:
        The error; raise it ``from`` the RPC's one. Its ``code`` is always the status on the wire.
    """
    if not isinstance(error, grpc.aio.AioRpcError | grpc.Call):
        return errors.SpearheadError(f"the call failed without a status: {error!r}")
    code, text = error.code(), error.details() or ""
    details = _parse_details(error.trailing_metadata() or ())
    if details is not None:
        return errors.from_status(code, text, details)
    return _transport_error(code, text, address or "the server")


def _parse_details(metadata: Iterable[tuple[str, str | bytes]]) -> errors.ErrorDetails | None:
    values = [value for key, value in metadata if key == _DETAILS_KEY]
    if not values or not isinstance(values[-1], bytes):
        return None
    try:
        status = status_pb2.Status.FromString(values[-1])
    except DecodeError:
        return None  # a proxy's; code and message still say what they say
    info, bad_request, retry = (
        error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest(), error_details_pb2.RetryInfo()
    )  # fmt: skip
    retry_after_s = None
    for detail in status.details:
        detail.Unpack(info) or detail.Unpack(bad_request)
        if detail.Unpack(retry):
            retry_after_s = retry.retry_delay.ToNanoseconds() / 1e9
    violations = bad_request.field_violations
    return errors.ErrorDetails(
        reason=info.reason if info.domain == errors.DOMAIN else "",
        retry_after_s=retry_after_s,
        field=violations[0].field if violations else "",
    )


def _transport_error(code: grpc.StatusCode, text: str, address: str) -> errors.SpearheadError:
    lowered = text.lower()
    match code:
        case grpc.StatusCode.RESOURCE_EXHAUSTED if "larger than max" in lowered:
            # Not Overloaded: sending it again cannot help.
            error: errors.SpearheadError = errors.InvalidRequest(
                f"a message to or from {address} is too large: {text} (bytes vs. limit); send less, or raise "
                "max_message_bytes on both sides"
            )
            error.code = code
            return error
        case grpc.StatusCode.CANCELLED if lowered in ("", "cancelled"):
            # Whoever cancels says so; without a word the server cut the call off when it ended.
            error = errors.NotReady(
                f"{address} ended while it answered; retry, another one may have taken over"
            )
            error.code = code
            return error
        case grpc.StatusCode.UNAVAILABLE if "hostname verification" in lowered:
            message = (
                f"TLS with {address} failed: {text}; the server's certificate is for another name: set "
                "tls_name (--tls-name) to one that it holds, or connect by that name"
            )
        case grpc.StatusCode.UNAVAILABLE if "handshake" in lowered or "ssl" in lowered:
            message = (
                f"TLS with {address} failed: {text}; check that both sides use TLS, that tls_ca signed the "
                "server's certificate for this host name, and that a client certificate is set if wanted"
            )
        case grpc.StatusCode.UNAVAILABLE:
            # gRPC says no more than "Socket closed" when a server misses a client certificate, or TLS at all.
            message = (
                f"{address} cannot be reached: {text}; check that it runs and listens at this address, and "
                "that TLS options match the server's"
            )
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            message = f"{address} did not finish before the deadline: {text}; allow more time or ask for less"
        case grpc.StatusCode.UNIMPLEMENTED:
            message = (
                f"{address} does not offer this method: {text}; check that the address is the right service"
            )
        case _:
            message = text or f"{address} answered {code.name}"
    return errors.from_status(code, message, errors.ErrorDetails())
