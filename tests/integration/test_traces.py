"""One request leaves one trace, and its steps lead to the workers' spans."""

from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from spearhead.client import SamplingParams
from spearhead.telemetry import Telemetry, TelemetryConfig

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def test_every_span_of_all_three_services_has_its_parent(real_stack):
    exporter = InMemorySpanExporter()
    telemetries = {
        name: Telemetry.start(
            f"{name}_service", TelemetryConfig(), span_processors=[SimpleSpanProcessor(exporter)]
        )
        for name in ("scheduler", "verify", "draft")
    }
    policy = {"kind": "static", "static_draft_tokens": 2}
    async with real_stack(telemetries=telemetries, policy=policy) as stack:
        await stack.client.generate_text(
            token_ids=list(range(40)),
            sampling=SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True),
            traceparent=TRACEPARENT,
        )
        await stack.idle()
    spans = exporter.get_finished_spans()
    known = {span.context.span_id for span in spans}
    services = {span.resource.attributes["service.name"] for span in spans}
    assert services == {"scheduler_service", "verify_service", "draft_service"}
    orphans = [s.name for s in spans if s.parent is not None and s.parent.span_id not in known]
    assert set(orphans) <= {"spearhead.v1.SchedulerService/Generate"}, "its parent is the client's span"

    (request,) = [span for span in spans if span.name == "spearhead.v1.SchedulerService/Generate"]
    assert f"{request.context.trace_id:032x}" == TRACEPARENT.split("-")[1]
    parts = {span.name for span in spans if span.parent and span.parent.span_id == request.context.span_id}
    assert {"queue", "prefill", "decode"} <= parts

    steps = [span for span in spans if span.name == "engine.step"]
    linked = {link.context.trace_id for step in steps for link in step.links}
    assert request.context.trace_id in linked
    by_id = {span.context.span_id: span for span in spans}
    forwards = [span for span in spans if span.name in ("verify.forward", "draft.forward")]
    assert {span.name for span in forwards} == {"verify.forward", "draft.forward"}
    for forward in forwards:
        server = by_id[forward.parent.span_id]
        assert server.start_time <= forward.start_time <= forward.end_time <= server.end_time
        client = by_id[server.parent.span_id]
        assert client.resource.attributes["service.name"] == "scheduler_service"
