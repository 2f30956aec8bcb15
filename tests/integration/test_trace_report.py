"""What happens to running services is what the trace report says."""

import asyncio

import pytest

from spearhead.client import Delta, SamplingParams
from spearhead.telemetry import Telemetry, TelemetryConfig
from spearhead.trace.report import build_report
from spearhead.trace.spans import read_traces
from spearhead.trace.tiles import Cause

POLICY = {"kind": "static", "static_draft_tokens": 2}


@pytest.fixture
def traced(tmp_path):
    """Telemetry of all three services into files, and the report on them once they are closed."""
    files = {name: tmp_path / f"{name}.jsonl" for name in ("scheduler", "verify", "draft")}
    telemetries = {
        name: Telemetry.start(f"{name}_service", TelemetryConfig(trace_file=path, log_level="error"))
        for name, path in files.items()
    }

    def report():
        for telemetry in telemetries.values():
            telemetry.shutdown()
        return build_report(read_traces(list(files.values())))

    yield telemetries, report
    for telemetry in telemetries.values():
        telemetry.shutdown()


def options(name, tokens, length=30):
    return {
        "token_ids": [(7 * i + len(name)) % 300 for i in range(length)],
        "sampling": SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True),
        "request_id": name,
    }


def gaps_of(report, name):
    (found,) = [request for request in report.requests if request.request.request_id == name]
    for gap in found.gaps:
        assert sum(gap.parts.values()) == gap.duration_ns
    return found.gaps


async def started(stream):
    async for event in stream:
        if isinstance(event, Delta):
            return


async def finish(stream):
    async for _ in stream:
        pass


async def test_a_large_prompt_of_somebody_else_is_named_with_its_owner(real_stack, traced):
    telemetries, report = traced
    async with real_stack(policy=POLICY, telemetries=telemetries) as stack:
        stream = stack.client.generate(**options("victim", 200))
        await started(stream)
        await asyncio.gather(finish(stream), stack.client.generate_text(**options("culprit", 1, length=500)))
        await stack.idle()
    hit = [g for g in gaps_of(report(), "victim") if "culprit" in g.note(Cause.PREFILL_OF_OTHERS)]
    assert hit


async def test_a_worker_that_is_replaced_is_named_although_its_own_spans_are_lost(real_stack, traced):
    telemetries, report = traced
    kept = {name: telemetry for name, telemetry in telemetries.items() if name != "verify"}
    async with real_stack(policy=POLICY, telemetries=kept) as stack:
        stream = stack.client.generate(**options("victim", 200))
        await started(stream)
        await stack.verify.kill()
        await stack.verify.restart()
        await finish(stream)
        await stack.idle()
    found = report()
    worst = max(gaps_of(found, "victim"), key=lambda gap: gap.parts.get(Cause.WORKER_RESTART, 0))
    assert worst.parts[Cause.WORKER_RESTART] > worst.duration_ns / 2
    assert Cause.WORKER_RESTART in {token.cause for token in found.late}


async def test_a_preemption_is_named(real_stack, traced):
    telemetries, report = traced
    async with real_stack(policy=POLICY, telemetries=telemetries, pages=24) as stack:
        answers = await asyncio.gather(
            *(stack.client.generate_text(**options(name, 200)) for name in ("one", "other!"))
        )
        await stack.idle()
    assert sum(answer.finished.timings.preemptions for answer in answers) > 0
    found = report()
    parts = [gap.parts.get(Cause.PREEMPTION, 0) for name in ("one", "other!") for gap in gaps_of(found, name)]
    assert max(parts) > 0
    assert Cause.PREEMPTION in {token.cause for token in found.late}


async def test_nothing_of_a_request_is_unattributed_when_everything_is_recorded(real_stack, traced):
    telemetries, report = traced
    async with real_stack(policy=POLICY, telemetries=telemetries) as stack:
        await stack.client.generate_text(**options("only", 60))
        await stack.idle()
    gaps = gaps_of(report(), "only")
    assert len(gaps) > 1
    unattributed = sum(gap.parts.get(Cause.UNATTRIBUTED, 0) for gap in gaps)
    assert unattributed < 0.01 * sum(gap.duration_ns for gap in gaps)


async def test_a_slow_request_that_was_not_sampled_is_explained_by_the_schedulers_file_alone(
    real_stack, tmp_path
):
    path = tmp_path / "scheduler.jsonl"
    config = TelemetryConfig(
        trace_file=path, sample_ratio=0.0, keep_slow_ttft_ms=1e-6, keep_slow_itl_ms=1e9, log_level="error"
    )
    telemetry = Telemetry.start("scheduler_service", config)
    async with real_stack(policy=POLICY, telemetries={"scheduler": telemetry}) as stack:
        await stack.client.generate_text(**options("slow", 40))
        await stack.idle()
    telemetry.shutdown()
    found = build_report(read_traces([path]))
    gaps = gaps_of(found, "slow")
    assert sum(gap.round.emitted for gap in gaps) == 40
    assert all(Cause.VERIFY in gap.parts for gap in gaps[1:])
    assert not any("missing" in warning for warning in found.warnings)
