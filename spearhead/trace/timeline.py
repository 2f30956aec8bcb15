"""What happened, put together from spans: steps with their calls, and requests with their rounds.

Everything here is on the scheduler's clock. Spans of workers matter only for when their process stood still,
and are carried over by :mod:`spearhead.trace.clocks`.
"""

import bisect
import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from spearhead.telemetry import STEPS_PER_ENGINE
from spearhead.trace.clocks import WorkerClocks
from spearhead.trace.records import Call, Interval, Member, Request, Round, Stall, Step, Wait
from spearhead.trace.spans import Span, integer, integers

GENERATE = "spearhead.v1.SchedulerService/Generate"
STALL = "process.stall"
WORKER_CALLS = {"spearhead.v1.VerifyService/Step": "verify", "spearhead.v1.DraftService/Propose": "draft"}
_STEP_NAMES = ("engine.step", "engine.release", "draft.catch_up")
_SEGMENTS = ("queue", "prefill", "decode")


class Timeline:
    """Everything that a report needs.

    Args:
        spans: Of all services.

    Attributes:
        requests: In the order of their arrival.
        steps: By process and engine, in the order of their start.
        stalls: Times in which a process stood still or was stuck, by process and its own clock.
        worker_stalls: Those of workers, on the scheduler's clock, by the scheduler's process and the worker's
            kind.
    """

    def __init__(self, spans: Sequence[Span]) -> None:
        children = _by_parent(spans)
        clocks = WorkerClocks(spans)
        self.requests = _requests(spans)
        self.steps: dict[tuple[str, int], list[Step]] = defaultdict(list)
        for span in spans:
            if span.name in _STEP_NAMES:
                step = _step(span, children)
                self.steps[span.process, engine_of(step.step_id)].append(step)
        self._starts = {engine: [step.start_ns for step in steps] for engine, steps in self.steps.items()}
        # The latest end so far only grows, so the first step that reaches into an interval can be looked up.
        self._reach = {
            engine: list(itertools.accumulate((step.end_ns for step in steps), max))
            for engine, steps in self.steps.items()
        }
        self.stalls: dict[str, list[Stall]] = defaultdict(list)
        self.worker_stalls: dict[tuple[str, str], list[Stall]] = defaultdict(list)
        for span in spans:
            if span.name == STALL:
                self.stalls[span.process].append(_stall(span, span.start_ns))
                for scheduler, worker, start_ns in clocks.on_scheduler_clocks(span.process, span.start_ns):
                    self.worker_stalls[scheduler, worker].append(_stall(span, start_ns))

    def steps_between(self, process: str, engine: int, start_ns: int, end_ns: int) -> list[Step]:
        """The steps of one engine of a scheduler that overlap an interval, in order."""
        key = process, engine
        first = bisect.bisect_right(self._reach.get(key, []), start_ns)
        last = bisect.bisect_left(self._starts.get(key, []), end_ns)
        return [step for step in self.steps.get(key, [])[first:last] if step.end_ns > start_ns]


def engine_of(step_id: int) -> int:
    """The engine of a scheduler whose step that is; every engine works for one verify worker."""
    return step_id // STEPS_PER_ENGINE


def _stall(span: Span, start_ns: int) -> Stall:
    busy = integer(span.attributes, "spearhead.stall.cpu_ns") > span.duration_ns / 2
    return Stall(process=span.process, start_ns=start_ns, end_ns=start_ns + span.duration_ns, busy=busy)


def _by_parent(spans: Iterable[Span]) -> dict[tuple[str, str], list[Span]]:
    children: dict[tuple[str, str], list[Span]] = defaultdict(list)
    for span in spans:
        if span.parent_id:
            children[span.trace_id, span.parent_id].append(span)
    return children


def _step(span: Span, children: Mapping[tuple[str, str], Sequence[Span]]) -> Step:
    attributes = span.attributes
    prefill = integer(attributes, "spearhead.batch.prefill_tokens")
    members = {
        request_id: Member(
            request_id=request_id,
            role=str(link.attributes.get("role", "")),
            computed_tokens=integer(link.attributes, "computed_tokens"),
        )
        for link in span.links
        if (request_id := str(link.attributes.get("spearhead.request.id", "")))
    }
    return Step(
        name=span.name,
        step_id=integer(attributes, "spearhead.step.id"),
        process=span.process,
        start_ns=span.start_ns,
        end_ns=span.end_ns,
        members=members,
        calls=tuple(
            _call(child, children.get((child.trace_id, child.span_id), ()))
            for child in children.get((span.trace_id, span.span_id), ())
            if child.name in WORKER_CALLS
        ),
        prefill_tokens=prefill,
        tokens=prefill
        + integer(attributes, "spearhead.batch.decode_tokens")
        + integer(attributes, "spearhead.batch.draft_tokens"),
        error=span.error,
    )


def _call(span: Span, children: Iterable[Span]) -> Call:
    known = "spearhead.worker.total_ns" in span.attributes
    return Call(
        worker=WORKER_CALLS[span.name],
        process=next((child.process for child in children), ""),
        start_ns=span.start_ns,
        end_ns=span.end_ns,
        total_ns=integer(span.attributes, "spearhead.worker.total_ns") if known else None,
        wait_ns=integer(span.attributes, "spearhead.worker.wait_ns"),
        loop_lag_ns=integer(span.attributes, "spearhead.worker.loop_lag_ns"),
        error=span.error,
    )


def _requests(spans: Sequence[Span]) -> list[Request]:
    roots: dict[tuple[str, str], Span] = {}
    parts: dict[tuple[str, str], list[Span]] = defaultdict(list)
    for span in spans:
        if span.name == GENERATE and "spearhead.request.id" in span.attributes:
            roots[span.trace_id, span.span_id] = span
        elif span.name in _SEGMENTS and span.parent_id:
            parts[span.trace_id, span.parent_id].append(span)
    # A request that still runs has no span of its own yet; the steps' links know its id all the same.
    names = {
        link.span_id: str(link.attributes.get("spearhead.request.id", "unknown"))
        for span in spans
        for link in span.links
    }
    found = [_request(key, roots.get(key), parts.get(key, []), names) for key in roots.keys() | parts.keys()]
    return sorted(found, key=lambda request: request.start_ns)


def _request(
    key: tuple[str, str], root: Span | None, parts: Sequence[Span], names: Mapping[str, str]
) -> Request:
    known = [root, *parts] if root is not None else list(parts)
    events = root.events if root is not None else ()
    return Request(
        request_id=_request_id(root, parts, names),
        trace_id=key[0],
        process=known[0].process,
        start_ns=min(span.start_ns for span in known),
        end_ns=max(span.end_ns for span in known),
        complete=root is not None,
        waits=tuple(
            Wait(
                start_ns=span.start_ns,
                end_ns=span.end_ns,
                reason=str(span.attributes.get("spearhead.queue.reason", "")),
            )
            for span in parts
            if span.name == "queue"
        ),
        segments=tuple((s.name, Interval(start_ns=s.start_ns, end_ns=s.end_ns)) for s in parts),
        rounds=tuple(sorted((r for span in parts for r in _rounds(span)), key=lambda r: r.emit_ns)),
        blocked=tuple(
            Interval(
                start_ns=event.time_ns,
                end_ns=event.time_ns + integer(event.attributes, "spearhead.client.blocked_ns"),
            )
            for event in events
            if event.name == "client_slow"
        ),
        events=tuple((event.name, event.time_ns) for event in events),
        error=root.error if root is not None else "",
    )


def _request_id(root: Span | None, parts: Iterable[Span], names: Mapping[str, str]) -> str:
    if root is not None:
        return str(root.attributes["spearhead.request.id"])
    return next((names[span.span_id] for span in parts if span.span_id in names), "unknown")


def _rounds(span: Span) -> list[Round]:
    names = ("step_ids", "emit_ns", "drafted", "accepted", "emitted")
    columns = [integers(span.attributes, f"spearhead.round.{name}") for name in names]
    return [
        Round(step_id=step_id, emit_ns=emit_ns, drafted=drafted, accepted=accepted, emitted=emitted)
        for step_id, emit_ns, drafted, accepted, emitted in zip(*columns, strict=True)
    ]
