"""A worker's comings and goings are spans, whatever is sampled."""

from dataclasses import dataclass

from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from scheduler_service.link_trace import LinkTrace
from scheduler_service.tracing import WallClock
from scheduler_service.worker_link import LinkState
from spearhead.telemetry.traces import make_provider


@dataclass
class FakeLink:
    name: str = "verify service at v:1"
    state: LinkState = LinkState.CONNECTING
    detail: str = ""
    session: int = 0


def test_each_time_with_and_without_the_worker_is_a_span_with_its_reason() -> None:
    exporter, link = InMemorySpanExporter(), FakeLink()
    tracer = make_provider("test", 0.0, [SimpleSpanProcessor(exporter)]).get_tracer("test")
    trace = LinkTrace(tracer, WallClock(), link)
    for state, detail, session in (
        (LinkState.LOST, "connection refused", 0),
        (LinkState.READY, "", 1),
        (LinkState.READY, "", 1),
        (LinkState.LOST, "it ended the stream", 1),
        (LinkState.READY, "", 2),
    ):
        link.state, link.detail, link.session = state, detail, session
        trace.update()
    spans = exporter.get_finished_spans()
    told = [(span.name, (span.attributes or {})["spearhead.worker.reason"]) for span in spans]
    assert told == [
        ("worker.lost", "connection refused"),
        ("worker.stream", "it ended the stream"),
        ("worker.lost", "it ended the stream"),
    ]
    assert [span.end_time for span in spans[:-1]] == [span.start_time for span in spans[1:]]
