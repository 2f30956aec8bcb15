"""The spans as a Chrome trace, which ui.perfetto.dev and chrome://tracing open.

A process each for the services, clocks carried over to the scheduler's, and one with a track a request, whose
gaps are divided by cause. Arrows lead from a step to the outputs that it brought.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from spearhead.trace.clocks import WorkerClocks
from spearhead.trace.report import Report
from spearhead.trace.spans import Span, integer
from spearhead.trace.timeline import engine_of

_REQUESTS_PID = 1
_OTHER = "other calls"
_ROOT_TRACKS = {
    "engine.step": "steps",
    "engine.release": "steps",
    "draft.catch_up": "catching up of the drafter",
    "worker.stream": "workers",
    "worker.lost": "workers",
    "process.stall": "stalls",
}
# Slices of one track must nest, so what overlaps is kept apart.
_TRACKS = (*dict.fromkeys(_ROOT_TRACKS.values()), _OTHER)


def perfetto_trace(spans: Sequence[Span], report: Report) -> dict[str, Any]:
    """The document.

    Args:
        spans: Of all services.
        report: About them; its requests become tracks.
    """
    processes = sorted({(span.service, span.process) for span in spans})
    pids = {process: pid for pid, (_, process) in enumerate(processes, start=_REQUESTS_PID + 1)}
    events = [
        *(
            _name("process_name", pids[process], 0, f"{service} {process[:8]}")
            for service, process in processes
        ),
        *(
            _name("thread_name", pid, tid, track)
            for pid in pids.values()
            for tid, track in enumerate(_TRACKS, start=1)
        ),
        *(
            _name("thread_name", pid, _tid(track, engine), f"{track}, engine {engine}")
            for pid in pids.values()
            for engine in sorted({_engine(span) for span in spans} - {0})
            for track in _TRACKS
        ),
        *_process_events(spans, pids),
        *_request_events(report),
        *_arrows(spans, report, pids),
    ]
    return {"displayTimeUnit": "ms", "traceEvents": events}


def _process_events(spans: Sequence[Span], pids: Mapping[str, int]) -> Iterator[dict[str, Any]]:
    clocks = WorkerClocks(spans)
    offsets = {process: clocks.offset_ns(process) for process in pids}
    roots = {
        span.trace_id: _tid(_ROOT_TRACKS[span.name], _engine(span))
        for span in spans
        if span.name in _ROOT_TRACKS
    }
    requests = {span.trace_id for span in spans if span.name.endswith("/Generate")}
    for span in spans:
        if span.trace_id not in requests:  # those have tracks of their own
            tid = roots.get(span.trace_id, _tid(_OTHER, 0))
            start_ns = span.start_ns - offsets[span.process]
            args = dict(span.attributes)
            yield _slice(span.name, pids[span.process], tid, start_ns, span.duration_ns, args)


def _request_events(report: Report) -> Iterator[dict[str, Any]]:
    yield _name("process_name", _REQUESTS_PID, 0, "requests")
    for index, request in enumerate(report.requests):
        parts_tid, tid = 2 * index + 2, 2 * index + 1
        yield _name("thread_name", _REQUESTS_PID, tid, request.request.request_id)
        yield _name("thread_name", _REQUESTS_PID, parts_tid, f"{request.request.request_id} by cause")
        late = {token.gap.index: token for token in request.late}
        for gap in request.gaps:
            token = late.get(gap.index)
            name = f"LATE: {token.cause}" if token else f"{gap.round.emitted} tokens"
            args = {
                "token": gap.token_index,
                "step": gap.round.step_id,
                "drafted": gap.round.drafted,
                "accepted": gap.round.accepted,
                "note": token.note if token else "",
            }
            yield _slice(name, _REQUESTS_PID, tid, gap.start_ns, gap.duration_ns, args)
            for tile in gap.tiles:
                yield _slice(
                    tile.cause, _REQUESTS_PID, parts_tid, tile.start_ns, tile.duration_ns, {"note": tile.note}
                )


def _arrows(spans: Sequence[Span], report: Report, pids: Mapping[str, int]) -> Iterator[dict[str, Any]]:
    steps = {(s.process, s.attributes.get("spearhead.step.id")): s for s in spans if s.name == "engine.step"}
    count = 0
    for index, request in enumerate(report.requests):
        for gap in request.gaps:
            step = steps.get((request.request.process, gap.round.step_id))
            if step is not None:
                count += 1
                arrow = {"cat": "step", "name": "brought", "id": count}
                tid = _tid(_ROOT_TRACKS[step.name], _engine(step))
                yield arrow | {"ph": "s", "pid": pids[step.process], "tid": tid, "ts": step.start_ns / 1e3}
                end_us = (gap.end_ns - 1) / 1e3
                yield arrow | {"ph": "f", "bp": "e", "pid": _REQUESTS_PID, "tid": 2 * index + 1, "ts": end_us}


def _tid(track: str, engine: int) -> int:
    """Each engine has tracks of its own: their steps overlap."""
    return engine * len(_TRACKS) + _TRACKS.index(track) + 1


def _engine(span: Span) -> int:
    return engine_of(integer(span.attributes, "spearhead.step.id"))


def _slice(
    name: str, pid: int, tid: int, start_ns: int, duration_ns: int, args: dict[str, Any]
) -> dict[str, Any]:
    times = {"ts": start_ns / 1e3, "dur": duration_ns / 1e3}
    return {"ph": "X", "cat": "spearhead", "name": str(name), "pid": pid, "tid": tid, "args": args} | times


def _name(kind: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}
