import dataclasses
import math
from typing import Any

import pytest

from scheduler_service.spec import SamplingSpec
from scheduler_service.validation import RequestLimits, check_request, resolve
from spearhead.errors import InvalidRequest
from spearhead.v1 import scheduler_pb2

LIMITS = RequestLimits(
    vocab_size=100,
    context_length=64,
    eos_token_ids=frozenset({2}),
    max_prompt_bytes=1000,
    default_max_tokens=16,
    kv_page_size=4,
    kv_page_count=16,
)


def request(prompt: str = "hello", **fields: Any) -> scheduler_pb2.GenerateRequest:
    message = scheduler_pb2.GenerateRequest(prompt=prompt)
    own = {name: fields.pop(name) for name in list(fields) if name in message.DESCRIPTOR.fields_by_name}
    message.sampling.MergeFrom(scheduler_pb2.SamplingParams(**fields))
    message.MergeFrom(scheduler_pb2.GenerateRequest(**own))
    return message


def refusal(message: scheduler_pb2.GenerateRequest, limits: RequestLimits = LIMITS) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        check_request(message, limits)
    return caught.value


@pytest.mark.parametrize(
    ("field", "value", "limit"),
    [
        ("temperature", -0.1, "at least 0"),
        ("temperature", 100.5, "at most 100"),
        ("temperature", math.nan, "nan"),
        ("temperature", math.inf, "inf"),
        ("top_p", 0.0, "more than 0"),
        ("top_p", 1.01, "at most 1"),
        ("top_p", math.nan, "nan"),
        ("min_p", -0.5, "at least 0"),
        ("min_p", 1.5, "at most 1"),
        ("presence_penalty", 2.5, "at most 2"),
        ("frequency_penalty", -2.5, "at least -2"),
        ("repetition_penalty", 0.0, "more than 0"),
        ("repetition_penalty", math.nan, "nan"),
        ("max_tokens", 0, "at least 1"),
        ("logprobs", 21, "at most 20"),
    ],
)
def test_values_out_of_range_are_refused_by_name(field: str, value: float, limit: str) -> None:
    error = refusal(request(**{field: value}))
    assert error.field == f"sampling.{field}"
    assert error.message.startswith(f"sampling.{field} ")
    assert limit in error.message


@pytest.mark.parametrize(
    ("message", "field", "words"),
    [
        (scheduler_pb2.GenerateRequest(), "input", "missing"),
        (request(""), "prompt", "empty"),
        (scheduler_pb2.GenerateRequest(tokens={}), "tokens.token_ids", "empty"),
        (scheduler_pb2.GenerateRequest(tokens={"token_ids": [1, 100]}), "tokens.token_ids", "100"),
        (scheduler_pb2.GenerateRequest(chat={}), "chat.messages", "empty"),
        (
            scheduler_pb2.GenerateRequest(chat={"messages": [{"content": "x"}]}),
            "chat.messages[0].role",
            "empty",
        ),
        (request("x" * 1001), "prompt", "1001 bytes"),
        (
            scheduler_pb2.GenerateRequest(chat={"messages": [{"role": "user", "content": "é" * 501}]}),
            "chat.messages",
            "1002 bytes",
        ),
        (request(request_id="x" * 129), "request_id", "129"),
        (request(precision=7), "precision", "7"),
        (request(priority=101), "priority", "at most 100"),
        (request(priority=-101), "priority", "at least -100"),
        (request(speculation={"max_draft_tokens": 17}), "speculation.max_draft_tokens", "at most 16"),
        (request(slo={"itl_ms": 0.0}), "slo.itl_ms", "greater than 0"),
        (request(slo={"ttft_ms": math.nan}), "slo.ttft_ms", "nan"),
        (request(slo={"ttft_ms": math.inf}), "slo.ttft_ms", "inf"),
        (request(stop=["x"] * 17), "sampling.stop", "17"),
        (request(stop=["x", ""]), "sampling.stop[1]", "0 bytes"),
        (request(stop=["x" * 1025]), "sampling.stop[0]", "1025 bytes"),
        (request(stop_token_ids=[1] * 65), "sampling.stop_token_ids", "65"),
        (request(stop_token_ids=[100]), "sampling.stop_token_ids", "100"),
        (request(logit_bias={100: 1.0}), "sampling.logit_bias", "100"),
        (request(logit_bias={5: math.nan}), "sampling.logit_bias[5]", "nan"),
        (request(logit_bias={5: 101.0}), "sampling.logit_bias[5]", "at most 100"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_breaks_the_contract_is_refused_with_field_and_value(
    message: scheduler_pb2.GenerateRequest, field: str, words: str
) -> None:
    error = refusal(message)
    assert error.field == field
    assert words in error.message


def test_too_many_biases_are_refused() -> None:
    limits = RequestLimits(
        vocab_size=5000,
        context_length=64,
        eos_token_ids=frozenset(),
        max_prompt_bytes=10,
        default_max_tokens=1,
        kv_page_size=4,
        kv_page_count=4,
    )
    error = refusal(request(logit_bias=dict.fromkeys(range(1025), 1.0)), limits)
    assert "1025" in error.message


def test_every_limit_itself_is_allowed() -> None:
    check_request(
        request(
            temperature=100.0,
            top_p=1.0,
            min_p=1.0,
            presence_penalty=-2.0,
            frequency_penalty=2.0,
            repetition_penalty=100.0,
            logprobs=20,
            stop=["x" * 1024] * 16,
            stop_token_ids=[99] * 64,
            logit_bias={99: -100.0},
            priority=-100,
            request_id="x" * 128,
            speculation={"max_draft_tokens": 16},
        ),
        LIMITS,
    )


def spec(message: scheduler_pb2.GenerateRequest, prompt_length: int = 5) -> Any:
    return resolve(message, list(range(prompt_length)), LIMITS, request_id="id", random_seed=42)


def test_defaults_are_those_of_the_contract() -> None:
    result = spec(request())
    assert result.sampling == SamplingSpec(seed=42)
    assert (result.max_tokens, result.min_tokens, result.logprob_count) == (16, 0, None)
    assert result.stop_token_ids == {2}
    assert (result.max_draft_tokens, result.precision, result.priority) == (None, "default", 0)
    assert (result.itl_slo_s, result.ttft_slo_s) == (None, None)


def test_explicit_zeros_are_not_defaults() -> None:
    result = spec(request(temperature=0.0, seed=0, logprobs=0, speculation={"max_draft_tokens": 0}))
    assert (result.sampling.temperature, result.sampling.seed) == (0.0, 0)
    assert (result.logprob_count, result.max_draft_tokens) == (0, 0)


def test_ignored_end_tokens_do_not_stop_but_stop_tokens_do() -> None:
    assert spec(request(ignore_eos=True, stop_token_ids=[7])).stop_token_ids == {7}


def test_slos_become_seconds() -> None:
    result = spec(request(slo={"itl_ms": 20.0, "ttft_ms": 500.0}))
    assert (result.itl_slo_s, result.ttft_slo_s) == (0.02, 0.5)


def test_a_prompt_that_fills_the_context_is_refused_with_both_lengths() -> None:
    with pytest.raises(InvalidRequest, match=r"64 tokens.*64"):
        spec(request(), prompt_length=64)


def test_an_empty_token_list_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="no tokens"):
        spec(request(), prompt_length=0)


def test_max_tokens_beyond_the_context_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"is 60.*5 tokens.*64") as caught:
        spec(request(max_tokens=60))
    assert caught.value.field == "sampling.max_tokens"


def test_default_max_tokens_gives_way_to_the_context() -> None:
    assert spec(request(), prompt_length=60).max_tokens == 4


def test_min_tokens_above_max_tokens_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"is 9.*which is 8") as caught:
        spec(request(min_tokens=9, max_tokens=8))
    assert caught.value.field == "sampling.min_tokens"


def test_a_request_that_no_pages_could_ever_hold_is_refused() -> None:
    limits = RequestLimits(
        vocab_size=100,
        context_length=64,
        eos_token_ids=frozenset(),
        max_prompt_bytes=1000,
        default_max_tokens=16,
        kv_page_size=4,
        kv_page_count=3,
    )
    with pytest.raises(InvalidRequest, match=r"13 tokens, 4 KV pages.*3"):
        resolve(request(max_tokens=8), range(5), limits, request_id="id", random_seed=0)
    assert resolve(request(), range(5), limits, request_id="id", random_seed=0).max_tokens == 7


def test_a_huge_prompt_is_refused_with_its_size() -> None:
    assert str(5 << 20) in refusal(request("x" * (5 << 20))).message


def test_a_token_list_beyond_the_context_is_refused_before_its_ids_are_read() -> None:
    error = refusal(scheduler_pb2.GenerateRequest(tokens={"token_ids": [10**6] * 64}))
    assert error.field == "tokens.token_ids"
    assert "64 tokens" in error.message


def test_too_many_chat_messages_are_refused() -> None:
    turns = [{"role": "user", "content": ""}] * 1025
    error = refusal(scheduler_pb2.GenerateRequest(chat={"messages": turns}))
    assert error.field == "chat.messages"
    assert "1025" in error.message
    assert "1024" in error.message


def test_a_time_between_tokens_is_refused_where_nothing_could_keep_it() -> None:
    limits = dataclasses.replace(LIMITS, keeps_itl=False)
    error = refusal(request(slo={"itl_ms": 20.0}), limits)
    assert error.field == "slo.itl_ms"
    assert 'policy.kind = "table"' in error.message
    check_request(request(slo={"ttft_ms": 500.0}), limits)
