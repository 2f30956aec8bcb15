"""What a client asks for: plain data with the names and defaults of the contract."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypedDict

Precision = Literal["default", "full"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens are chosen. ``None`` = the server's default, named behind each field.

    Ranges are those of ``spearhead.v1.SamplingParams``; the server checks them and answers with
    :class:`~spearhead.errors.InvalidRequest`, whose ``field`` names the parameter.
    """

    temperature: float | None = None  # 1; 0 = greedy
    top_p: float | None = None  # 1 = off
    top_k: int | None = None  # 0 = off
    min_p: float | None = None  # 0 = off
    seed: int | None = None  # random; same seed, same output
    max_tokens: int | None = None  # 256
    min_tokens: int | None = None  # 0
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool | None = None  # False
    presence_penalty: float | None = None  # 0
    frequency_penalty: float | None = None  # 0
    repetition_penalty: float | None = None  # 1 = off
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    logprobs: int | None = None  # None = no log-probabilities; n = with n alternatives


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """Speculative decoding for one request; it never changes the output.

    Attributes:
        max_draft_tokens: Most drafts a step, 0..16; 0 = off, ``None`` = the scheduler chooses.
    """

    max_draft_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """What the request needs, in milliseconds; ``None`` = the server's default."""

    itl_ms: float | None = None
    ttft_ms: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One turn of a conversation.

    Attributes:
        role: "system", "user", "assistant" or another role that the model's template knows.
        content: The text.
    """

    role: str
    content: str


class RequestOptions(TypedDict, total=False):
    """Keyword arguments that every ``generate`` method takes beside ``prompt``.

    Keys:
        messages: A conversation, laid out by the model's own chat template.
        token_ids: The prompt as token ids, used as they are.
        sampling: How tokens are chosen.
        speculation: Drafts for this request.
        precision: Which weights verify it; "full" is never downgraded silently.
        slo: Latency that it needs.
        priority: -100..100, higher first; 0 by default.
        request_id: Unique among running requests; chosen by the client when left out.
        timeout_s: Deadline of the whole answer, retries included; 600 by default.
        traceparent: W3C trace context of the caller's span.
    """

    messages: Sequence[Message | Mapping[str, str]]
    token_ids: Sequence[int]
    sampling: SamplingParams
    speculation: Speculation
    precision: Precision
    slo: Slo
    priority: int
    request_id: str
    timeout_s: float
    traceparent: str
