"""The spans: one trace a request, one a step, each parent and link right."""

import asyncio
import itertools
from collections.abc import Iterator, Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from prometheus_client.openmetrics.exposition import generate_latest

from scheduler_service.tracing import RequestTrace, WallClock
from spearhead.telemetry import Telemetry, TelemetryConfig, context_from_traceparent
from spearhead.v1 import scheduler_pb2, types_pb2
from tests.scheduler_service.conftest import StackFactory

GENERATE = "spearhead.v1.SchedulerService/Generate"
VERIFY, DRAFT = "spearhead.v1.VerifyService/Step", "spearhead.v1.DraftService/Propose"


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def telemetry(exporter: InMemorySpanExporter) -> Iterator[Telemetry]:
    telemetry = Telemetry.start(
        "scheduler", TelemetryConfig(), span_processors=[SimpleSpanProcessor(exporter)]
    )
    yield telemetry
    telemetry.shutdown()


def named(spans: Sequence[ReadableSpan], name: str) -> list[ReadableSpan]:
    return sorted((span for span in spans if span.name == name), key=lambda span: span.start_time or 0)


def parent_id(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def own_id(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.span_id


async def test_a_request_is_one_trace_with_its_segments_below_its_rpc(
    make_stack: StackFactory, telemetry: Telemetry, exporter: InMemorySpanExporter
) -> None:
    async with make_stack(telemetry=telemetry) as stack:
        answer = await stack.generate(stack.request(max_tokens=30, request_id="mine"))
        await stack.idle()
    spans = exporter.get_finished_spans()
    (root,) = named(spans, GENERATE)
    segments = [span for span in spans if parent_id(span) == own_id(root)]
    assert [span.name for span in sorted(segments, key=lambda s: s.start_time or 0)] == [
        "queue",
        "prefill",
        "decode",
    ]
    assert root.context is not None
    assert all(span.context and span.context.trace_id == root.context.trace_id for span in segments)
    attributes = root.attributes or {}
    assert attributes["spearhead.request.id"] == "mine"
    assert attributes["gen_ai.usage.output_tokens"] == 30
    assert attributes["gen_ai.response.finish_reasons"] == ("length",)
    assert attributes["spearhead.spec.rounds"] == answer.finished.speculation.rounds
    assert attributes["spearhead.spec.accepted"] == answer.finished.speculation.accepted_tokens
    assert [event.name for event in root.events] == ["first_token"]
    assert attributes["gen_ai.operation.name"] == "text_completion"
    assert attributes["gen_ai.response.id"] == "mine"
    assert attributes["gen_ai.response.model"] == "toy"
    assert "spearhead.spec.inactive_reason" not in attributes
    (queue,) = named(spans, "queue")
    assert (queue.attributes or {})["spearhead.queue.position"] == 0
    assert not any("prompt" in key or "text" in key for key in attributes)


async def test_the_root_span_names_every_worker_that_computed_the_request(
    make_stack: StackFactory, telemetry: Telemetry, exporter: InMemorySpanExporter
) -> None:
    async with make_stack(telemetry=telemetry, verify_count=2) as stack:
        first, second = (server.address for server in stack.verify_servers)
        stream = await stack.open(stack.request(max_tokens=700))
        await stack.verify_servers[0].kill()
        await stream.rest()
        drafter = stack.draft_server.address
    spans = exporter.get_finished_spans()
    (root,) = named(spans, GENERATE)
    attributes = root.attributes or {}
    assert attributes["spearhead.worker.verify"] == (first, second)
    assert attributes["spearhead.worker.draft"] == (drafter,)
    assert "worker_lost" in [event.name for event in root.events]
    reasons = [(span.attributes or {})["spearhead.queue.reason"] for span in named(spans, "queue")]
    assert reasons[-1] == "worker_lost"
    steps = named(spans, "engine.step")
    workers = {(span.attributes or {}).get("spearhead.worker.verify") for span in steps}
    assert {first, second} <= workers
    ids = [(span.attributes or {})["spearhead.step.id"] for span in steps]
    assert len(set(ids)) == len(ids)


async def test_the_rounds_of_a_request_are_in_arrays_not_in_spans(
    make_stack: StackFactory, telemetry: Telemetry, exporter: InMemorySpanExporter
) -> None:
    async with make_stack(telemetry=telemetry) as stack:
        answer = await stack.generate(stack.request(max_tokens=600, max_draft_tokens=0))
    spans = exporter.get_finished_spans()
    segments = named(spans, "decode")
    rounds = [len(span.attributes["spearhead.round.step_ids"]) for span in segments if span.attributes]
    assert rounds == [256, 256, 88]
    assert sum(rounds) == answer.finished.speculation.rounds
    for span in segments:
        attributes = span.attributes or {}
        assert sum(attributes["spearhead.round.emitted"]) == len(attributes["spearhead.round.step_ids"])
        starts, emits = attributes["spearhead.round.start_ns"], attributes["spearhead.round.emit_ns"]
        assert all(start <= emit for start, emit in zip(starts, emits, strict=True))
    (root,) = named(spans, GENERATE)
    assert len([span for span in spans if parent_id(span) == own_id(root)]) == 5


async def test_a_step_is_a_trace_of_its_own_linked_to_its_members(
    make_stack: StackFactory, telemetry: Telemetry, exporter: InMemorySpanExporter
) -> None:
    async with make_stack(telemetry=telemetry) as stack:
        requests = [stack.request(f"{i} prompt", max_tokens=15, request_id=f"r{i}") for i in range(3)]
        await asyncio.gather(*(stack.generate(request) for request in requests))
        await stack.idle()
    spans = exporter.get_finished_spans()
    by_id = {own_id(span): span for span in spans}
    steps = named(spans, "engine.step")
    assert len(steps) > 3
    roots = {span.context.trace_id for span in named(spans, GENERATE) if span.context}
    for step in steps:
        assert step.parent is None
        assert step.context is not None
        assert step.context.trace_id not in roots
        attributes = step.attributes or {}
        assert len(step.links) == attributes["spearhead.batch.requests"]
        assert attributes["spearhead.step.loop_lag_ns"] >= 0
        for link in step.links:
            segment = by_id[link.context.span_id]
            assert link.attributes is not None
            assert segment.name == link.attributes["role"]
            request = by_id[parent_id(segment) or 0]
            assert (request.attributes or {})["spearhead.request.id"] == link.attributes[
                "spearhead.request.id"
            ]
        children = [span for span in spans if parent_id(span) == own_id(step)]
        names = {span.name for span in children}
        assert {"schedule", "emit", VERIFY} <= names <= {"schedule", "emit", VERIFY, DRAFT}
        assert all(step.start_time <= c.start_time and c.end_time <= step.end_time for c in children)
        assert sum(c.end_time - c.start_time for c in children) <= step.end_time - step.start_time
    drafted = sum((step.attributes or {})["spearhead.batch.draft_tokens"] for step in steps)
    assert drafted == stack.metric("spec_decode_num_draft_tokens_total") > 0


async def test_prefill_links_to_the_steps_that_computed_it(
    make_stack: StackFactory, telemetry: Telemetry, exporter: InMemorySpanExporter
) -> None:
    async with make_stack(telemetry=telemetry, policy={"static_step_tokens": 16}) as stack:
        await stack.generate(stack.request("x" * 40, max_tokens=2, max_draft_tokens=0))
    spans = exporter.get_finished_spans()
    (prefill,) = named(spans, "prefill")
    steps = named(spans, "engine.step")
    assert [link.context.span_id for link in prefill.links] == [own_id(step) for step in steps[:3]]
    attributes = prefill.attributes or {}
    assert attributes["spearhead.prefill.chunks"] == 3
    assert attributes["spearhead.prefill.tokens"] == 40


async def test_every_worker_message_carries_the_context_of_its_own_span(
    make_stack: StackFactory, telemetry: Telemetry, exporter: InMemorySpanExporter
) -> None:
    async with make_stack(telemetry=telemetry) as stack:
        await stack.generate(stack.request(max_tokens=12))
        await stack.idle()
        messages = {VERIFY: list(stack.verify.requests), DRAFT: list(stack.draft.requests)}
    spans = exporter.get_finished_spans()
    for method, requests in messages.items():
        calls = named(spans, method)
        assert all(span.kind is SpanKind.CLIENT for span in calls)
        with_items = [request for request in requests if request.items]
        assert len(with_items) == len(calls)
        carried = [request.traceparent.split("-")[2] for request in with_items]
        assert sorted(carried) == sorted(format(own_id(span), "016x") for span in calls)
    catch_ups = named(spans, "draft.catch_up")
    assert catch_ups
    assert all(span.parent is None for span in catch_ups)


async def test_no_span_has_a_parent_that_does_not_exist(
    make_stack: StackFactory, telemetry: Telemetry, exporter: InMemorySpanExporter
) -> None:
    async with make_stack(telemetry=telemetry) as stack:
        streams = [await stack.open(stack.request(f"{i}", max_tokens=2000)) for i in range(2)]
        await stack.stub.Abort(scheduler_pb2.AbortRequest(request_id="unknown"))
        for stream in streams:
            stream.cancel()
        await stack.idle()
    spans = exporter.get_finished_spans()
    ids = {own_id(span) for span in spans}
    assert all(span.parent is None or span.parent.span_id in ids for span in spans)
    assert {event.name for span in named(spans, GENERATE) for event in span.events} == {
        "first_token",
        "cancelled",
    }


async def test_the_callers_trace_is_continued(
    make_stack: StackFactory, telemetry: Telemetry, exporter: InMemorySpanExporter
) -> None:
    traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with make_stack(telemetry=telemetry) as stack:
        await stack.generate(stack.request(max_tokens=3), metadata=(("traceparent", traceparent),))
    (root,) = named(exporter.get_finished_spans(), GENERATE)
    assert context_from_traceparent(traceparent) is not None
    assert root.context is not None
    assert format(root.context.trace_id, "032x") == "0af7651916cd43dd8448eb211c80319c"


async def test_an_unsampled_request_costs_no_span_and_no_context(
    make_stack: StackFactory, telemetry: Telemetry, exporter: InMemorySpanExporter
) -> None:
    traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
    async with make_stack(telemetry=telemetry) as stack:
        await stack.generate(stack.request(max_tokens=9), metadata=(("traceparent", traceparent),))
        assert {request.traceparent for request in stack.verify.requests} == {""}
    assert named(exporter.get_finished_spans(), GENERATE) == []
    assert named(exporter.get_finished_spans(), "engine.step") == []


async def test_a_preemption_is_a_second_queue_span(
    make_stack: StackFactory, telemetry: Telemetry, exporter: InMemorySpanExporter
) -> None:
    async with make_stack(telemetry=telemetry, verify={"page_count": 45}) as stack:
        requests = [stack.request(f"request number {i} wants", max_tokens=100) for i in range(4)]
        answers = await asyncio.gather(*(stack.generate(request) for request in requests))
    spans = exporter.get_finished_spans()
    preemptions = sum(answer.finished.timings.preemptions for answer in answers)
    assert preemptions > 0
    queues = named(spans, "queue")
    assert len(queues) == 4 + preemptions
    reasons = [(span.attributes or {})["spearhead.queue.reason"] for span in queues]
    assert reasons.count("kv_blocks") >= preemptions


async def test_a_lost_step_is_an_error_on_its_spans(
    make_stack: StackFactory, telemetry: Telemetry, exporter: InMemorySpanExporter
) -> None:
    async with make_stack(telemetry=telemetry) as stack:

        def break_once(count: int) -> None:
            if count == 3:
                raise RuntimeError("injected")

        stack.verify.before_step = break_once
        await stack.generate(stack.request(max_tokens=12))
    spans = exporter.get_finished_spans()
    failed = [span.name for span in spans if span.status.status_code is StatusCode.ERROR]
    assert sorted(failed) == ["engine.step", VERIFY]
    (lost,) = [span for span in named(spans, "engine.step") if span.status.status_code is StatusCode.ERROR]
    assert len(lost.links) == 1, "who waited for it is told"


async def test_a_chat_is_called_one(
    make_stack: StackFactory, telemetry: Telemetry, exporter: InMemorySpanExporter
) -> None:
    async with make_stack(telemetry=telemetry) as stack:
        chat = {"messages": [{"role": "user", "content": "hi"}]}
        await stack.generate(scheduler_pb2.GenerateRequest(chat=chat, sampling={"max_tokens": 2}))
    (root,) = named(exporter.get_finished_spans(), GENERATE)
    assert (root.attributes or {})["gen_ai.operation.name"] == "chat"


async def test_a_cancelled_request_says_where_its_time_went_too(
    make_stack: StackFactory, telemetry: Telemetry, exporter: InMemorySpanExporter
) -> None:
    async with make_stack(telemetry=telemetry, with_draft=False) as stack:
        stream = await stack.open(stack.request(max_tokens=3000))
        stream.cancel()
        await stack.idle()
    (root,) = named(exporter.get_finished_spans(), GENERATE)
    attributes = root.attributes or {}
    assert attributes["gen_ai.response.finish_reasons"] == ("error",)
    assert attributes["gen_ai.usage.output_tokens"] == attributes["spearhead.spec.rounds"]
    assert attributes["gen_ai.latency.e2e"] > 0
    assert attributes["spearhead.spec.inactive_reason"] == "no draft service"


async def test_accepted_drafts_beyond_the_end_count_nowhere(
    make_stack: StackFactory, telemetry: Telemetry, exporter: InMemorySpanExporter
) -> None:
    async with make_stack(telemetry=telemetry, policy={"static_draft_tokens": 4}) as stack:
        answer = await stack.generate(stack.request(max_tokens=40, stop=["a", "e", "i", "o", "u"]))
    accepted = answer.finished.speculation.accepted_tokens
    segments = named(exporter.get_finished_spans(), "decode")
    assert sum(sum((span.attributes or {})["spearhead.round.accepted"]) for span in segments) == accepted


async def test_latencies_carry_the_trace_of_a_recorded_request(
    make_stack: StackFactory, telemetry: Telemetry, exporter: InMemorySpanExporter
) -> None:
    async with make_stack(telemetry=telemetry) as stack:
        await stack.generate(stack.request(max_tokens=9))
    (root,) = named(exporter.get_finished_spans(), GENERATE)
    assert root.context is not None
    trace_id = format(root.context.trace_id, "032x")
    exposed = generate_latest(telemetry.registry).decode()
    for name in ("time_to_first_token", "e2e_request_latency", "inter_token_latency", "request_queue_time"):
        lines = [line for line in exposed.splitlines() if line.startswith(f"spearhead_{name}_seconds_bucket")]
        assert any(f'trace_id="{trace_id}"' in line for line in lines)


async def test_an_outage_is_a_queue_span_between_two_segments(
    make_stack: StackFactory, telemetry: Telemetry, exporter: InMemorySpanExporter
) -> None:
    limits = {"min_reconnect_s": 0.3, "max_reconnect_s": 0.3}
    async with make_stack(telemetry=telemetry, limits=limits) as stack:
        stream = await stack.open(stack.request(max_tokens=1000))
        await stack.verify_server.kill()
        await stack.wait_workers(lambda: not stack.scheduler.ready)
        await stack.verify_server.start()
        await stream.rest()
    spans = exporter.get_finished_spans()
    first, outage = named(spans, "queue")
    assert (first.attributes or {})["spearhead.queue.reason"] == "slots"
    assert (outage.attributes or {})["spearhead.queue.reason"] == "worker_lost"
    assert (outage.end_time or 0) - (outage.start_time or 0) > 0.1e9
    (root,) = named(spans, GENERATE)
    assert [event.name for event in root.events].count("worker_lost") == 1
    assert parent_id(outage) == own_id(root)
    segments = sorted(
        (span for span in spans if parent_id(span) == own_id(root)), key=lambda span: span.start_time or 0
    )
    for before, after in itertools.pairwise(segments):
        assert (before.end_time or 0) <= (after.start_time or 0)


async def test_a_call_says_by_itself_where_the_worker_spent_its_time(
    make_stack: StackFactory, telemetry: Telemetry, exporter: InMemorySpanExporter
) -> None:
    async with make_stack(telemetry=telemetry) as stack:
        await stack.generate(stack.request(max_tokens=8))
        await stack.idle()
    spans = exporter.get_finished_spans()
    calls = named(spans, VERIFY) + named(spans, DRAFT)
    assert calls
    for call in calls:
        attributes = call.attributes or {}
        parts = [
            attributes[f"spearhead.worker.{part}_ns"] for part in ("wait", "compute", "total", "loop_lag")
        ]
        assert all(isinstance(part, int) and part >= 0 for part in parts)


async def test_a_catch_up_of_the_drafter_names_whose_tokens_it_computes(
    make_stack: StackFactory, telemetry: Telemetry, exporter: InMemorySpanExporter
) -> None:
    async with make_stack(telemetry=telemetry) as stack:
        await stack.generate(stack.request([i % 50 for i in range(200)], max_tokens=30, request_id="mine"))
        await stack.idle()
    caught_up = [s for s in named(exporter.get_finished_spans(), "draft.catch_up") if s.links]
    assert caught_up
    assert {(link.attributes or {})["spearhead.request.id"] for s in caught_up for link in s.links} == {
        "mine"
    }


def test_a_client_that_takes_its_output_late_leaves_events_and_a_total(
    telemetry: Telemetry, exporter: InMemorySpanExporter
) -> None:
    span = telemetry.tracer.start_span(GENERATE)
    trace = RequestTrace(telemetry.tracer, span, WallClock())
    trace.delivered(10.0, 10.001)
    trace.delivered(11.0, 11.5)
    trace.delivery_ended()
    span.end()
    (root,) = exporter.get_finished_spans()
    (event,) = root.events
    assert event.name == "client_slow"
    assert (event.attributes or {})["spearhead.client.blocked_ns"] == pytest.approx(5e8)
    assert (root.attributes or {})["spearhead.client.backpressure_ns"] == pytest.approx(5.01e8, rel=1e-6)


async def test_every_span_that_was_begun_ends_also_where_only_pages_are_freed(
    make_stack: StackFactory, telemetry: Telemetry, exporter: InMemorySpanExporter
) -> None:
    async with make_stack(telemetry=telemetry) as stack:
        stream = await stack.open(stack.request(max_tokens=400))
        await asyncio.gather(*(stack.generate(stack.request(max_tokens=3)) for _ in range(4)))
        await stream.rest()
        await stack.idle()
    spans = exporter.get_finished_spans()
    known = {own_id(span) for span in spans}
    assert [span.name for span in spans if span.parent is not None and parent_id(span) not in known] == []


async def test_a_sequence_that_the_verify_service_forgot_is_an_event(
    make_stack: StackFactory, telemetry: Telemetry, exporter: InMemorySpanExporter
) -> None:
    async with make_stack(telemetry=telemetry) as stack:
        stack.verify.item_faults = {5: types_pb2.ITEM_ERROR_REASON_CACHE_MISS}
        await stack.generate(stack.request(max_tokens=20))
        await stack.idle()
    (root,) = named(exporter.get_finished_spans(), GENERATE)
    assert [event.name for event in root.events] == ["first_token", "kv_evicted"]
