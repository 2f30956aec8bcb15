"""Steps say what the workers computed, which may be less than what was planned."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spearhead.telemetry import Telemetry, TelemetryConfig
from spearhead.trace.records import Step
from spearhead.trace.report import build_report
from spearhead.trace.spans import Traces, read_traces
from spearhead.trace.tiles import Cause
from spearhead.trace.timeline import Timeline
from tests.scheduler_service.conftest import StackFactory

SMALL = {"max_compute_tokens": 24}
POLICY = {"static_step_tokens": 64}


@pytest.fixture
def telemetry(tmp_path: Path) -> Iterator[Telemetry]:
    config = TelemetryConfig(trace_file=tmp_path / "scheduler.jsonl", log_level="error")
    telemetry = Telemetry.start("scheduler_service", config)
    yield telemetry
    telemetry.shutdown()


@pytest.fixture
def traces(telemetry: Telemetry, tmp_path: Path) -> Callable[[], Traces]:
    """Reads what was recorded, once all of it is written."""

    def read() -> Traces:
        telemetry.shutdown()
        return read_traces([tmp_path / "scheduler.jsonl"])

    return read


def steps_with(traces: Traces, request_id: str, name: str = "engine.step") -> list[Step]:
    steps = [step for steps in Timeline(traces.spans).steps.values() for step in steps]
    return [step for step in steps if step.name == name and request_id in step.members]


def computed(steps: list[Step], request_id: str) -> list[int]:
    return [step.members[request_id].computed_tokens for step in steps]


async def test_a_chunk_that_the_worker_divides_is_recorded_as_it_was_computed(
    make_stack: StackFactory, telemetry: Telemetry, traces: Callable[[], Traces]
) -> None:
    async with make_stack(telemetry=telemetry, with_draft=False, verify=SMALL, policy=POLICY) as stack:
        await stack.generate(stack.request(range(40), max_tokens=1, request_id="long"))
        assert stack.metric("iteration_tokens_total_sum") == 40
    steps = steps_with(traces(), "long")
    assert computed(steps, "long") == [24, 16]
    assert [step.prefill_tokens for step in steps] == [24, 16]


async def test_what_the_prefix_cache_supplies_is_not_recorded_as_computed(
    make_stack: StackFactory, telemetry: Telemetry, traces: Callable[[], Traces]
) -> None:
    async with make_stack(telemetry=telemetry, with_draft=False, policy=POLICY) as stack:
        await stack.generate(stack.request(range(40), max_tokens=1))
        await stack.generate(stack.request(range(50), max_tokens=1, request_id="again"))
    (step,) = steps_with(traces(), "again")
    assert (step.members["again"].computed_tokens, step.prefill_tokens) == (10, 10)


async def test_verified_drafts_are_not_recorded_as_computed(
    make_stack: StackFactory, telemetry: Telemetry, traces: Callable[[], Traces]
) -> None:
    async with make_stack(telemetry=telemetry, policy={"static_draft_tokens": 4}) as stack:
        answer = await stack.generate(stack.request(range(10), max_tokens=20, request_id="drafted"))
    assert answer.finished.speculation.accepted_tokens > 0
    assert set(computed(steps_with(traces(), "drafted"), "drafted")[1:]) == {1}


async def test_a_catch_up_records_what_the_drafter_computed(
    make_stack: StackFactory, telemetry: Telemetry, traces: Callable[[], Traces]
) -> None:
    async with make_stack(telemetry=telemetry, draft=SMALL, policy=POLICY) as stack:
        await stack.generate(stack.request(range(40), max_tokens=4, request_id="long"))
        await stack.idle()
    assert computed(steps_with(traces(), "long", "draft.catch_up"), "long")[0] == 24


async def test_the_report_names_every_part_of_a_divided_chunk_where_it_delayed_somebody(
    make_stack: StackFactory, telemetry: Telemetry, traces: Callable[[], Traces]
) -> None:
    async with make_stack(telemetry=telemetry, with_draft=False, verify=SMALL, policy=POLICY) as stack:

        def take_long_for_prompts(count: int) -> None:
            items = stack.verify.requests[-1].items
            stack.verify.total_ns = 10**9 if any(len(item.token_ids) > 4 for item in items) else 1

        stack.verify.before_step = take_long_for_prompts
        stream = await stack.open(stack.request(range(5), max_tokens=600, request_id="victim"))
        summary = stack.request(range(100, 140), max_tokens=1, request_id="summary")
        await asyncio.gather(stream.rest(), stack.generate(summary))
    (victim,) = build_report(traces(), request_id="victim").requests
    notes = [gap.note(Cause.PREFILL_OF_OTHERS) for gap in victim.gaps]
    assert [note for note in notes if note] == ["summary (24 tokens)", "summary (16 tokens)"]
