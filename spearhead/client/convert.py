"""Between the client's plain data and the contract's messages; pure functions."""

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from typing import Any, TypeVar

import numpy as np
from google.protobuf.duration_pb2 import Duration

from spearhead.client.events import (
    Delta,
    Event,
    Finished,
    FinishReason,
    SpeculationStats,
    Started,
    Timings,
    TokenLogprobs,
    Usage,
)
from spearhead.client.request import Message, RequestOptions
from spearhead.client.server import Load, Model, ServerInfo
from spearhead.errors import InvalidRequest, SpearheadError
from spearhead.v1 import scheduler_pb2, types_pb2

Plain = TypeVar("Plain")
_PRECISIONS = {"default": types_pb2.PRECISION_DEFAULT, "full": types_pb2.PRECISION_FULL}
_REASONS: dict[int, FinishReason] = {
    scheduler_pb2.FINISH_REASON_STOP: "stop",
    scheduler_pb2.FINISH_REASON_LENGTH: "length",
    scheduler_pb2.FINISH_REASON_ABORT: "abort",
}


def request_to_proto(prompt: str | None, options: RequestOptions) -> scheduler_pb2.GenerateRequest:
    """The message for one request.

    Args:
        prompt: Text to continue, or ``None`` when ``options`` hold messages or token ids.
        options: The rest.

    Raises:
        InvalidRequest: Not exactly one input, or a value that its field cannot hold.
    """
    request = scheduler_pb2.GenerateRequest(request_id=options.get("request_id") or uuid.uuid4().hex)
    _set_input(request, prompt, options.get("messages"), options.get("token_ids"))
    for name in ("sampling", "speculation", "slo"):
        values: object = options.get(name)
        if values is not None:
            _copy_fields(values, getattr(request, name), name)
    precision = options.get("precision", "default")
    if precision not in _PRECISIONS:
        raise InvalidRequest(f"precision is {precision!r}; it must be 'default' or 'full'", field="precision")
    request.precision = _PRECISIONS[precision]
    if (priority := options.get("priority")) is not None:
        _assign("priority", partial(setattr, request, "priority", priority))
    return request


def event_from_proto(response: scheduler_pb2.GenerateResponse) -> Event:
    """The event in one message of an answer.

    Raises:
        SpearheadError: The message holds no event that this client knows.
    """
    match response.WhichOneof("event"):
        case "started":
            started = response.started
            return Started(
                request_id=started.request_id,
                prompt_token_count=started.prompt_token_count,
                seed=started.seed,
            )
        case "delta":
            return Delta(
                token_ids=tuple(response.delta.token_ids),
                text=response.delta.text,
                logprobs=tuple(_logprobs(entry) for entry in response.delta.logprobs),
            )
        case "finished":
            return _finished(response.finished)
    raise SpearheadError("the server sent an event that this client does not know; upgrade the client")


def server_info_from_proto(response: scheduler_pb2.GetServerInfoResponse) -> ServerInfo:
    """What the server says it serves."""
    return ServerInfo(
        version=response.version,
        protocol_version=response.protocol_version,
        target=_plain(Model, response.target),
        variant=response.variant,
        draft=_plain(Model, response.draft) if response.HasField("draft") else None,
        draft_status=response.draft_status,
        context_length=response.context_length,
        max_running_requests=response.max_running_requests,
        max_waiting_requests=response.max_waiting_requests,
        max_draft_tokens=response.max_draft_tokens,
    )


def load_from_proto(response: scheduler_pb2.GetLoadResponse) -> Load:
    """How busy the server says it is."""
    return _plain(Load, response)


def _set_input(
    request: scheduler_pb2.GenerateRequest,
    prompt: str | None,
    messages: Sequence[Message | Mapping[str, str]] | None,
    token_ids: Sequence[int] | None,
) -> None:
    given = [value is not None for value in (prompt, messages, token_ids)]
    if sum(given) != 1:
        raise InvalidRequest(
            f"{sum(given)} of prompt, messages and token_ids are given; give exactly one", field="input"
        )
    if prompt is not None:
        _assign("prompt", partial(setattr, request, "prompt", prompt))
    elif messages is not None:
        request.chat.SetInParent()
        for message in messages:
            _assign("chat.messages", partial(request.chat.messages.add, **_turn(message)))
    else:
        request.tokens.SetInParent()
        _assign("tokens.token_ids", partial(request.tokens.token_ids.extend, token_ids or ()))


def _turn(message: Message | Mapping[str, str]) -> dict[str, str]:
    if isinstance(message, Message):
        return {"role": message.role, "content": message.content}
    return dict(message)


def _copy_fields(source: Any, target: Any, path: str) -> None:
    target.SetInParent()
    for entry in fields(source):
        value = getattr(source, entry.name)
        if value is None:
            continue
        path_of_value = f"{path}.{entry.name}"
        if isinstance(value, Mapping):
            _assign(path_of_value, partial(getattr(target, entry.name).update, value))
        elif isinstance(value, Sequence) and not isinstance(value, str):
            _assign(path_of_value, partial(getattr(target, entry.name).extend, value))
        else:
            _assign(path_of_value, partial(setattr, target, entry.name, value))


def _assign(field: str, action: Callable[[], object]) -> None:
    """Runs one assignment; protobuf's own complaint becomes an error that names the field."""
    try:
        action()
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"{field} cannot be sent: {error}", field=field) from None


def _finished(finished: scheduler_pb2.GenerationFinished) -> Finished:
    timings = finished.timings
    return Finished(
        reason=_REASONS.get(finished.reason, "stop"),
        stop_string=finished.stop_string or None,
        stop_token_id=finished.stop_token_id if finished.HasField("stop_token_id") else None,
        usage=_plain(Usage, finished.usage),
        speculation=_plain(SpeculationStats, finished.speculation),
        timings=Timings(
            e2e_s=_seconds(timings.e2e),
            time_to_first_token_s=_seconds(timings.time_to_first_token),
            queue_s=_seconds(timings.queue),
            prefill_s=_seconds(timings.prefill),
            draft_s=_seconds(timings.draft),
            verify_s=_seconds(timings.verify),
            network_s=_seconds(timings.network),
            scheduler_s=_seconds(timings.scheduler),
            preemptions=timings.preemptions,
        ),
    )


def _logprobs(entry: types_pb2.TokenLogprobs) -> TokenLogprobs:
    ids = np.frombuffer(entry.top_token_ids, "<u4").tolist()
    values = np.frombuffer(entry.top_logprobs, "<f4").tolist()
    return TokenLogprobs(
        token_id=entry.token_id,
        logprob=entry.logprob,
        rank=entry.rank,
        top=tuple(zip(ids, values, strict=True)),
    )


def _seconds(duration: Duration) -> float:
    return duration.seconds + duration.nanos * 1e-9


def _plain(cls: type[Plain], message: Any) -> Plain:
    """``cls`` filled from the message's fields of the same names."""
    return cls(**{entry.name: getattr(message, entry.name) for entry in fields(cls)})  # type: ignore[arg-type]
