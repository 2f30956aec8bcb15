"""Checks a ``GenerateRequest`` and resolves its defaults.

Pure: the caller tokenises between :func:`check_request`, which bounds what is tokenised, and
:func:`resolve`, which needs the prompt's tokens. Each refusal names the field, the value and the limit.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scheduler_service.spec import GenerationSpec, Precision, SamplingSpec
from spearhead.errors import InvalidRequest
from spearhead.v1 import scheduler_pb2, types_pb2

MAX_REQUEST_ID_LENGTH = 128
MAX_STOP_STRINGS = 16
MAX_STOP_STRING_BYTES = 1024
MAX_STOP_TOKENS = 64
MAX_LOGIT_BIASES = 1024
MAX_LOGPROBS = 20
MAX_DRAFT_TOKENS = 16
MAX_CHAT_MESSAGES = 1024

_PRECISIONS: dict[int, Precision] = {
    types_pb2.PRECISION_UNSPECIFIED: "default",
    types_pb2.PRECISION_DEFAULT: "default",
    types_pb2.PRECISION_FULL: "full",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """What the target model and the server allow.

    Attributes:
        vocab_size: Token ids below it exist.
        context_length: Longest prompt and output together, tokens.
        eos_token_ids: Tokens that end a sequence.
        max_prompt_bytes: Longest prompt that is tokenised.
        default_max_tokens: ``max_tokens`` of a request that names none.
        kv_page_size: Tokens in one KV page of the target.
        kv_page_count: KV pages of the target in all.
        default_priority: ``priority`` of a request that names none.
        keeps_itl: Steps are planned with measured latencies, so that a time between tokens can be kept.
    """

    vocab_size: int
    context_length: int
    eos_token_ids: frozenset[int]
    max_prompt_bytes: int
    default_max_tokens: int
    kv_page_size: int
    kv_page_count: int
    default_priority: int = 0
    keeps_itl: bool = True


def check_request(request: scheduler_pb2.GenerateRequest, limits: RequestLimits) -> None:
    """Refuses what can be refused without the prompt's tokens.

    Raises:
        InvalidRequest: A field is missing, out of range or unknown.
    """
    if len(request.request_id) > MAX_REQUEST_ID_LENGTH:
        raise _invalid(
            "request_id", f"has {len(request.request_id)} characters; at most {MAX_REQUEST_ID_LENGTH}"
        )
    _check_input(request, limits)
    _check_sampling(request.sampling, limits)
    if request.precision not in _PRECISIONS:
        known = ", ".join(types_pb2.Precision.keys())
        raise _invalid(
            "precision", f"is {request.precision}, which this server does not know; it knows {known}"
        )
    if request.speculation.HasField("max_draft_tokens"):
        _check_range(
            "speculation.max_draft_tokens", request.speculation.max_draft_tokens, 0, MAX_DRAFT_TOKENS
        )
    for name in ("itl_ms", "ttft_ms"):
        value = getattr(request.slo, name)
        if request.slo.HasField(name) and not (math.isfinite(value) and value > 0):
            raise _invalid(f"slo.{name}", f"is {value}; it must be finite and greater than 0")
    if request.slo.HasField("itl_ms") and not limits.keeps_itl:
        raise _invalid(
            "slo.itl_ms",
            f"is {request.slo.itl_ms:g}, and this server has no measured latencies to keep it by; leave it "
            'out, or run `spearhead profile`, name its table in policy.table and set policy.kind = "table"',
        )
    _check_range("priority", request.priority, -100, 100)


def resolve(
    request: scheduler_pb2.GenerateRequest,
    prompt_token_ids: Sequence[int],
    limits: RequestLimits,
    *,
    request_id: str,
    random_seed: int,
) -> GenerationSpec:
    """The specification of a request that passed :func:`check_request`.

    Args:
        request: What the client sent.
        prompt_token_ids: Its prompt.
        limits: What is allowed.
        request_id: The client's, or a new one.
        random_seed: The seed, if the client gave none.

    Raises:
        InvalidRequest: The prompt is empty, or does not fit the context or the KV cache.
    """
    sampling = request.sampling
    max_tokens = _max_tokens(sampling, len(prompt_token_ids), limits)
    if sampling.min_tokens > max_tokens:
        raise _invalid(
            "sampling.min_tokens", f"is {sampling.min_tokens}; at most max_tokens, which is {max_tokens}"
        )
    eos_token_ids = frozenset() if sampling.ignore_eos else limits.eos_token_ids
    speculation, slo = request.speculation, request.slo
    return GenerationSpec(
        request_id=request_id,
        prompt_token_ids=tuple(prompt_token_ids),
        sampling=_sampling_spec(sampling, random_seed),
        max_tokens=max_tokens,
        min_tokens=sampling.min_tokens,
        stop_strings=tuple(sampling.stop),
        stop_token_ids=eos_token_ids | frozenset(sampling.stop_token_ids),
        max_draft_tokens=speculation.max_draft_tokens if speculation.HasField("max_draft_tokens") else None,
        precision=_PRECISIONS[request.precision],
        itl_slo_s=slo.itl_ms / 1e3 if slo.HasField("itl_ms") else None,
        ttft_slo_s=slo.ttft_ms / 1e3 if slo.HasField("ttft_ms") else None,
        priority=request.priority if request.HasField("priority") else limits.default_priority,
        logprob_count=sampling.logprobs if sampling.HasField("logprobs") else None,
        chat=request.HasField("chat"),
    )


def _check_input(request: scheduler_pb2.GenerateRequest, limits: RequestLimits) -> None:
    kind = request.WhichOneof("input")
    if kind is None:
        raise _invalid("input", "is missing; give one of prompt, chat, tokens")
    if kind == "prompt":
        if not request.prompt:
            raise _invalid("prompt", "is empty; it needs at least one character")
        _check_prompt_bytes("prompt", len(request.prompt.encode()), limits)
    elif kind == "chat":
        if not request.chat.messages:
            raise _invalid("chat.messages", "is empty; it needs at least one message")
        _check_count("chat.messages", len(request.chat.messages), MAX_CHAT_MESSAGES)
        for index, message in enumerate(request.chat.messages):
            if not message.role:
                raise _invalid(f"chat.messages[{index}].role", 'is empty; it must be a role such as "user"')
        size = sum(len(message.content.encode()) for message in request.chat.messages)
        _check_prompt_bytes("chat.messages", size, limits)
    else:
        if not request.tokens.token_ids:
            raise _invalid("tokens.token_ids", "is empty; it needs at least one token")
        # Before the walk: a list may be far longer than any prompt.
        _check_room("tokens.token_ids", len(request.tokens.token_ids), limits)
        _check_token_ids("tokens.token_ids", request.tokens.token_ids, limits)


def _check_prompt_bytes(field: str, size: int, limits: RequestLimits) -> None:
    if size > limits.max_prompt_bytes:
        raise _invalid(field, f"has {size} bytes; this server takes at most {limits.max_prompt_bytes}")


def _check_sampling(sampling: scheduler_pb2.SamplingParams, limits: RequestLimits) -> None:
    def check(name: str, low: float, high: float) -> None:
        if sampling.HasField(name):
            _check_range(f"sampling.{name}", getattr(sampling, name), low, high)

    check("temperature", 0, 100)
    check("top_p", math.nextafter(0, 1), 1)
    check("top_k", 0, math.inf)
    check("min_p", 0, 1)
    check("max_tokens", 1, math.inf)
    check("presence_penalty", -2, 2)
    check("frequency_penalty", -2, 2)
    check("repetition_penalty", math.nextafter(0, 1), 100)
    check("logprobs", 0, MAX_LOGPROBS)
    _check_count("sampling.stop", len(sampling.stop), MAX_STOP_STRINGS)
    for index, stop in enumerate(sampling.stop):
        if not 1 <= len(stop.encode()) <= MAX_STOP_STRING_BYTES:
            raise _invalid(
                f"sampling.stop[{index}]", f"has {len(stop.encode())} bytes; 1 to {MAX_STOP_STRING_BYTES}"
            )
    _check_count("sampling.stop_token_ids", len(sampling.stop_token_ids), MAX_STOP_TOKENS)
    _check_token_ids("sampling.stop_token_ids", sampling.stop_token_ids, limits)
    _check_count("sampling.logit_bias", len(sampling.logit_bias), MAX_LOGIT_BIASES)
    _check_token_ids("sampling.logit_bias", list(sampling.logit_bias), limits)
    for token_id, bias in sampling.logit_bias.items():
        _check_range(f"sampling.logit_bias[{token_id}]", bias, -100, 100)


def _check_range(field: str, value: float, low: float, high: float) -> None:
    # The comparison is false for NaN, which is how NaN is refused.
    if not low <= value <= high:
        tiny = math.nextafter(0, 1)
        lower = "more than 0" if low == tiny else f"at least {low:g}"
        upper = "" if high == math.inf else f" and at most {high:g}"
        raise _invalid(field, f"is {value:g}; it must be {lower}{upper}")


def _check_count(field: str, count: int, limit: int) -> None:
    if count > limit:
        raise _invalid(field, f"has {count} entries; at most {limit}")


def _check_token_ids(field: str, token_ids: Sequence[int], limits: RequestLimits) -> None:
    largest = max(token_ids, default=0)
    if largest >= limits.vocab_size:
        raise _invalid(field, f"contains token id {largest}; the vocabulary has {limits.vocab_size} tokens")


def _check_room(field: str, prompt_length: int, limits: RequestLimits) -> int:
    room = limits.context_length - prompt_length
    if room < 1:
        raise _invalid(
            field,
            f"has {prompt_length} tokens; the context has room for {limits.context_length} in all, "
            "at least one of them generated",
        )
    return room


def _max_tokens(sampling: scheduler_pb2.SamplingParams, prompt_length: int, limits: RequestLimits) -> int:
    if prompt_length < 1:
        raise _invalid("prompt", "has no tokens; it needs at least one")
    room = _check_room("prompt", prompt_length, limits)
    if not sampling.HasField("max_tokens"):
        room = min(room, limits.kv_page_count * limits.kv_page_size - prompt_length)
        max_tokens = max(1, min(room, limits.default_max_tokens))
    else:
        max_tokens = sampling.max_tokens
    if max_tokens > room:
        raise _invalid(
            "sampling.max_tokens",
            f"is {max_tokens}, and the prompt has {prompt_length} tokens; "
            f"together they must fit the context of {limits.context_length}",
        )
    _check_pages(prompt_length + max_tokens, limits)
    return max_tokens


def _check_pages(length: int, limits: RequestLimits) -> None:
    pages = -(-length // limits.kv_page_size)
    if pages > limits.kv_page_count:
        raise _invalid(
            "sampling.max_tokens",
            f"and the prompt come to {length} tokens, {pages} KV pages; "
            f"the verify service holds {limits.kv_page_count} in all",
        )


def _sampling_spec(sampling: scheduler_pb2.SamplingParams, random_seed: int) -> SamplingSpec:
    default = SamplingSpec()
    return SamplingSpec(
        temperature=sampling.temperature if sampling.HasField("temperature") else default.temperature,
        top_p=sampling.top_p if sampling.HasField("top_p") else default.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        seed=sampling.seed if sampling.HasField("seed") else random_seed,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=(
            sampling.repetition_penalty
            if sampling.HasField("repetition_penalty")
            else default.repetition_penalty
        ),
        logit_bias=tuple(sorted(sampling.logit_bias.items())),
    )


def _invalid(field: str, problem: str) -> InvalidRequest:
    return InvalidRequest(f"{field} {problem}", field=field)
