"""Trace files with a known story: what a scheduler with two workers would write, made by hand."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from spearhead.trace.spans import Traces, read_traces

MS = 1_000_000
START = 1_800_000_000_000_000_000
GENERATE = "spearhead.v1.SchedulerService/Generate"
VERIFY, DRAFT = "spearhead.v1.VerifyService/Step", "spearhead.v1.DraftService/Propose"


def attribute(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, str):
        return {"stringValue": value}
    return {"arrayValue": {"values": [attribute(item) for item in value]}}


def attributes(values: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": attribute(value)} for key, value in values.items()]


@dataclass
class Story:
    """Writes spans; times in milliseconds after ``START`` on the scheduler's clock.

    The workers' clocks are wrong by ``skew_ms``. Requests are named by letters; each has one decode segment.
    """

    skew_ms: float = 5000.0
    spans: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    rounds: dict[str, list[tuple[int, float, int, int, int]]] = field(default_factory=dict)
    count: int = 0

    def span(self, service: str, name: str, start: float, end: float, **more: Any) -> str:
        self.count += 1
        span_id = more.pop("span_id", f"{self.count:016x}")
        skew = 0.0 if service == "scheduler" else self.skew_ms
        encoded = {
            "traceId": more.pop("trace", f"{self.count:032x}"),
            "spanId": span_id,
            "parentSpanId": more.pop("parent", ""),
            "name": name,
            "startTimeUnixNano": str(START + round((start + skew) * MS)),
            "endTimeUnixNano": str(START + round((end + skew) * MS)),
            "attributes": attributes(more.pop("attributes", {})),
            "links": more.pop("links", []),
            "events": [
                {"name": event, "timeUnixNano": str(START + round(at * MS)), "attributes": attributes(extra)}
                for event, at, extra in more.pop("events", ())
            ],
            "status": {"code": 2, "message": error} if (error := more.pop("error", "")) else {"code": 0},
        }
        assert not more, more
        self.spans.setdefault(service, []).append(encoded)
        return span_id

    def step(
        self,
        number: int,
        start: float,
        *,
        members: dict[str, tuple[str, int]],
        verify: float = 8.0,
        draft: float = 2.0,
        network: float = 0.5,
        overhead: float = 0.2,
        prefill: int = 0,
        error: str = "",
        wait: float = 0.0,
    ) -> float:
        """One step: overhead, the draft call, the verify call, overhead. Returns its end."""
        trace = f"{number:031x}e"
        root = f"{number:015x}e"
        now = start + overhead
        for name, service, took in ((DRAFT, "draft", draft), (VERIFY, "verify", verify)):
            if not took:
                continue
            timing = {
                "spearhead.worker.total_ns": round(took * MS),
                "spearhead.worker.wait_ns": round(wait * MS) if service == "draft" else 0,
                "spearhead.worker.loop_lag_ns": 0,
            }
            failed = error if service == "verify" else ""
            call = self.span(
                "scheduler", name, now, now + network + took, trace=trace, parent=root,
                attributes={} if failed else timing, error=failed,
            )  # fmt: skip
            if not failed:
                begin = now + network / 2
                server = self.span(service, name, begin, begin + took, trace=trace, parent=call)
                self.span(service, f"{service}.forward", begin, begin + took, trace=trace, parent=server)
            now += network + took
        now += overhead
        links = [
            {
                "traceId": "00",
                "spanId": f"decode-{name}",
                "attributes": attributes(
                    {"spearhead.request.id": name, "role": role, "computed_tokens": tokens}
                ),
            }
            for name, (role, tokens) in members.items()
        ]
        batch = {
            "spearhead.step.id": number,
            "spearhead.batch.prefill_tokens": prefill,
            "spearhead.batch.decode_tokens": len(members),
        }
        self.span(
            "scheduler", "engine.step", start, now, trace=trace, span_id=root, links=links,
            attributes=batch, error=error,
        )  # fmt: skip
        return now

    def round(
        self, request: str, number: int, emit: float, *, drafted: int = 3, accepted: int = 3, emitted: int = 4
    ) -> None:
        self.rounds.setdefault(request, []).append((number, emit, drafted, accepted, emitted))

    def request(
        self,
        name: str,
        start: float,
        end: float,
        *,
        waits: tuple[tuple[float, float, str], ...] = (),
        events: tuple[tuple[str, float, dict[str, Any]], ...] = (),
        finished: bool = True,
    ) -> None:
        trace, root = f"{ord(name[0]):032x}", f"root-{name}"
        if finished:
            self.span(
                "scheduler", GENERATE, start, end, trace=trace, span_id=root, events=events,
                attributes={"spearhead.request.id": name},
            )  # fmt: skip
        for begin, until, reason in waits:
            reasons = {"spearhead.queue.reason": reason}
            self.span("scheduler", "queue", begin, until, trace=trace, parent=root, attributes=reasons)
        columns = list(zip(*self.rounds.get(name, []), strict=True)) or [()] * 5
        names = ("step_ids", "emit_ns", "drafted", "accepted", "emitted")
        columns[1] = tuple(START + round(at * MS) for at in columns[1])
        arrays = {f"spearhead.round.{key}": values for key, values in zip(names, columns, strict=True)}
        self.span(
            "scheduler", "decode", start, end, trace=trace, parent=root, span_id=f"decode-{name}",
            attributes=arrays,
        )  # fmt: skip

    def stall(self, service: str, start: float, end: float, *, cpu_ms: float = 0.0) -> None:
        self.span(
            service, "process.stall", start, end, attributes={"spearhead.stall.cpu_ns": round(cpu_ms * MS)}
        )

    def lines(self, service: str) -> str:
        resource = {"service.name": f"{service}_service", "service.instance.id": f"{service}-1"}
        document = {
            "resourceSpans": [
                {
                    "resource": {"attributes": attributes(resource)},
                    "scopeSpans": [{"scope": {"name": "spearhead"}, "spans": self.spans[service]}],
                }
            ]
        }
        return json.dumps(document) + "\n"

    def write(self, folder: Path) -> list[Path]:
        paths = []
        for service in self.spans:
            paths.append(folder / f"{service}.jsonl")
            paths[-1].write_text(self.lines(service))
        return paths


@pytest.fixture
def story() -> Story:
    return Story()


@pytest.fixture
def traces(tmp_path: Path) -> Callable[[Story], Traces]:
    return lambda story: read_traces(story.write(tmp_path))
