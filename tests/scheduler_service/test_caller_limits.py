"""Limits of bearer tokens, kept by a running scheduler."""

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import generate_latest

from spearhead.errors import QuotaExceeded
from spearhead.rpc import error_from_rpc
from spearhead.telemetry import Telemetry, TelemetryConfig
from spearhead.v1 import scheduler_pb2
from tests.scheduler_service.conftest import StackFactory
from tests.scheduler_service.stack import Stack, Stream

A, B = "s3cret-of-team-a", "s3cret-of-team-b"


def bearer(token: str) -> dict[str, Any]:
    return {"metadata": (("authorization", f"Bearer {token}"),)}


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    """Replaces the token file, as a rotation does it."""

    def replace(text: str) -> Path:
        fresh, tokens = tmp_path / "fresh", tmp_path / "tokens"
        fresh.write_text(text)
        os.replace(fresh, tokens)
        return tokens

    return replace


def call(stack: Stack, token: str, prompt: str = "once", **fields: Any) -> Stream:
    return Stream(stack.stub.Generate(stack.request(prompt, **fields), **bearer(token)))


async def refused(stack: Stack, token: str, **fields: Any) -> QuotaExceeded:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(stack, token, **fields).rest()
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    error = error_from_rpc(caught.value)
    assert isinstance(error, QuotaExceeded)
    return error


async def test_a_caller_at_its_limit_waits_while_others_pass_and_everybody_is_answered(
    make_stack: StackFactory, write: Callable[[str], Path]
) -> None:
    tokens = write(f"{A} name=a max_running=1 max_waiting=2\n{B} name=b\n")
    async with make_stack(server={"token_file": tokens}) as stack:
        first = call(stack, A, "first", max_tokens=300)
        await first.next("started")
        await first.next("delta")
        prompts = ["second", "third"]
        waiting = [call(stack, A, prompt, max_tokens=20) for prompt in prompts]
        for stream in waiting:
            await stream.next("started")
        error = await refused(stack, A)
        assert "'a' has 1 requests running of at most 1 and 2 waiting, and 2 may wait" in error.message
        assert error.retry_after_s
        other = await call(stack, B, "other", max_tokens=5).rest()
        assert other.token_ids == stack.expected(stack.request("other", max_tokens=5))
        assert stack.metric("caller_requests_running", caller="a") == 1
        assert stack.metric("caller_requests_waiting", caller="a") == 2
        assert (await first.rest()).token_ids == stack.expected(stack.request("first", max_tokens=300))
        for prompt, stream in zip(prompts, waiting, strict=True):
            answer = await stream.rest()
            assert answer.token_ids == stack.expected(stack.request(prompt, max_tokens=20))
        assert stack.metric("caller_requests_total", caller="a") == 3
        assert stack.metric("caller_generation_tokens_total", caller="a") == 340
        assert stack.metric("caller_requests_refused_total", caller="a", limit="max_waiting") == 1
        stack.check()


async def test_a_second_worker_takes_up_a_caller_s_next_request_when_one_is_cancelled(
    make_stack: StackFactory, write: Callable[[str], Path]
) -> None:
    tokens = write(f"{A} name=a max_running=1\n")
    async with make_stack(server={"token_file": tokens}, verify_count=2) as stack:
        first = call(stack, A, "first", max_tokens=3900)
        await first.next("started")
        await first.next("delta")
        second = call(stack, A, "second", max_tokens=5)
        await second.next("started")
        first.cancel()
        assert (await second.rest()).token_ids == stack.expected(stack.request("second", max_tokens=5))


async def test_a_rate_that_is_used_up_names_the_time_to_retry(
    make_stack: StackFactory, write: Callable[[str], Path]
) -> None:
    tokens = write(f"{A} name=a requests_per_minute=2\n{B} name=b\n")
    async with make_stack(server={"token_file": tokens}) as stack:
        for _ in range(2):
            assert (await call(stack, A, max_tokens=2).rest()).token_ids
        error = await refused(stack, A, max_tokens=2)
        assert error.retry_after_s is not None
        assert 0 < error.retry_after_s <= 30
        assert "2 requests a minute" in error.message
        assert (await call(stack, B, max_tokens=2).rest()).token_ids


async def test_more_output_than_allowed_is_refused_and_the_default_is_cut(
    make_stack: StackFactory, write: Callable[[str], Path]
) -> None:
    tokens = write(f"{A} name=a max_output_tokens=7 max_priority=-2\n")
    async with make_stack(server={"token_file": tokens}) as stack:
        assert (await refused(stack, A, max_tokens=8)).field == "sampling.max_tokens"
        assert (await refused(stack, A, max_tokens=7, priority=0)).field == "priority"
        assert len((await call(stack, A).rest()).token_ids) == 7


async def test_new_limits_and_new_tokens_of_the_same_caller_hold_without_a_restart(
    make_stack: StackFactory, write: Callable[[str], Path]
) -> None:
    tokens = write(f"{A} name=a max_running=1 max_waiting=0\n")
    async with make_stack(server={"token_file": tokens}) as stack:
        first = call(stack, A, max_tokens=3900)
        await first.next("started")
        await first.next("delta")
        await refused(stack, A)
        write(f"{B} name=a max_running=2 max_waiting=0\n")
        second = call(stack, B, max_tokens=3900)
        await second.next("started")
        await second.next("delta")
        assert "has 2 requests running of at most 2" in (await refused(stack, B)).message
        first.cancel()
        second.cancel()
        await stack.verify.wait_empty()


async def test_no_token_is_in_a_log_a_span_a_metric_or_an_error(
    make_stack: StackFactory, write: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    tokens = write(f"{A} name=team-a requests_per_minute=1 max_output_tokens=3\n")
    spans = InMemorySpanExporter()
    telemetry = Telemetry.start("test", TelemetryConfig(), span_processors=[SimpleSpanProcessor(spans)])
    shown = []
    with caplog.at_level(logging.DEBUG):
        async with make_stack(server={"token_file": tokens}, telemetry=telemetry) as stack:
            shown.append(str((await refused(stack, A, max_tokens=4)).message))
            await call(stack, A).rest()
            shown.append(str((await refused(stack, A)).message))
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stack.stub.GetLoad(scheduler_pb2.GetLoadRequest(), **bearer(f"{A}-wrong"))
            shown += [str(caught.value), generate_latest(stack.telemetry.registry).decode()]
    telemetry.shutdown()
    recorded = [str(span.to_json()) for span in spans.get_finished_spans()]
    assert any('"spearhead.caller": "team-a"' in span for span in recorded)
    everything = "\n".join([*shown, *recorded, caplog.text])
    assert "team-a" in caplog.text
    assert A not in everything
