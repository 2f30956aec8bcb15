"""From spans to the report: every request's gaps, and the late tokens among them with their causes."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from spearhead.errors import ConfigError
from spearhead.trace.attribution import Attribution
from spearhead.trace.causes import Gap, LateToken, Objectives, Typical, late_token, typical_gap
from spearhead.trace.records import Request
from spearhead.trace.spans import Span, Traces
from spearhead.trace.tiles import Cause
from spearhead.trace.timeline import Timeline, engine_of


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestReport:
    """One request.

    Attributes:
        request: It.
        gaps: Before each output, in order.
        typical: Its typical gap; ``None`` = there are too few.
        late: Its late outputs, in order.
    """

    request: Request
    gaps: tuple[Gap, ...]
    typical: Typical | None
    late: tuple[LateToken, ...]

    @property
    def tokens(self) -> int:
        """Tokens that it got."""
        return sum(gap.round.emitted for gap in self.gaps)

    @property
    def parts(self) -> dict[Cause, int]:
        """Nanoseconds by cause, over all gaps."""
        parts: Counter[Cause] = Counter()
        for gap in self.gaps:
            parts.update(gap.parts)
        return dict(parts.most_common())


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything.

    Attributes:
        requests: In the order of their arrival.
        objectives: What counts as late.
        services: Spans by service.
        warnings: What the reader should know about the data.
    """

    requests: tuple[RequestReport, ...]
    objectives: Objectives
    services: Mapping[str, int]
    warnings: tuple[str, ...]

    @property
    def late(self) -> list[LateToken]:
        """All late outputs, the latest first."""
        found = [token for request in self.requests for token in request.late]
        return sorted(found, key=lambda token: -token.excess_ns)


def build_report(
    traces: Traces, *, request_id: str | None = None, objectives: Objectives | None = None
) -> Report:
    """Explains late tokens.

    Args:
        traces: Of all services, as far as they are known.
        request_id: Report on this request only; the others still explain it.
        objectives: What is late.

    Raises:
        ConfigError: There is no request, or none of that id.
    """
    objectives = objectives or Objectives()
    spans, timeline = traces.spans, Timeline(traces.spans)
    gaps = {index: _gaps(timeline, request) for index, request in enumerate(timeline.requests)}
    everybodys = [gap for own in gaps.values() for gap in own]
    first_gaps = [own[0] for own in gaps.values() if own]
    reports = []
    for index, request in enumerate(timeline.requests):
        if request_id in (None, request.request_id):
            typical = typical_gap(gaps[index], everybodys)
            judged = (late_token(request, gap, typical, first_gaps, objectives) for gap in gaps[index])
            late = tuple(token for token in judged if token is not None)
            reports.append(RequestReport(request=request, gaps=gaps[index], typical=typical, late=late))
    if not reports:
        raise ConfigError(_nothing_found(timeline.requests, request_id))
    return Report(
        requests=tuple(reports),
        objectives=objectives,
        services=Counter(span.service for span in spans),
        warnings=(*traces.warnings, *_warnings(timeline, spans)),
    )


def _gaps(timeline: Timeline, request: Request) -> tuple[Gap, ...]:
    attribution = Attribution(timeline, request, _typical_verify_ns(timeline, request))
    gaps: list[Gap] = []
    start_ns, token_index, before = request.start_ns, 0, None
    for index, round_ in enumerate(request.rounds):
        end_ns = max(start_ns, _taken_ns(request, round_.emit_ns))
        gaps.append(
            Gap(
                index=index,
                token_index=token_index,
                round=round_,
                start_ns=start_ns,
                end_ns=end_ns,
                tiles=attribution.tiles(start_ns, end_ns, round_.step_id, before),
                last=index == len(request.rounds) - 1,
            )
        )
        start_ns, before = end_ns, round_.step_id
        token_index += round_.emitted
    return tuple(gaps)


def _taken_ns(request: Request, emit_ns: int) -> int:
    """When the client's stream took what was handed on: outputs wait behind one that is not taken."""
    ends = [blocked.end_ns for blocked in request.blocked if blocked.start_ns <= emit_ns < blocked.end_ns]
    return max(ends, default=emit_ns)


def _typical_verify_ns(timeline: Timeline, request: Request) -> int | None:
    """The verify service's median time for steps that decode only, of this request or of anybody."""
    engines = {engine_of(round_.step_id) for round_ in request.rounds}
    steps = [
        step
        for engine in engines
        for step in timeline.steps.get((request.process, engine), ())
        if not step.prefill_tokens
    ]
    mine = [step for step in steps if request.request_id in step.members]
    for chosen in (mine, steps):
        times = [
            call.total_ns
            for step in chosen
            for call in step.calls
            if call.worker == "verify" and call.total_ns is not None
        ]
        if times:
            return round(median(times))
    return None


def _nothing_found(requests: Sequence[Request], request_id: str | None) -> str:
    if request_id is None:
        return (
            "the files hold no request; give the scheduler's trace file too, and check telemetry.sample_ratio"
        )
    known = ", ".join(request.request_id for request in requests[:5]) or "none"
    return f"there is no request {request_id!r} in the files; the first of {len(requests)} are: {known}"


def _warnings(timeline: Timeline, spans: Sequence[Span]) -> list[str]:
    warnings = []
    unfinished = sum(not request.complete for request in timeline.requests)
    if unfinished:
        warnings.append(f"{unfinished} requests have no span of their own: they still run, or it was lost")
    known = {
        (step.process, step.step_id) for steps in timeline.steps.values() for step in steps if not step.beside
    }
    wanted = {(request.process, r.step_id) for request in timeline.requests for r in request.rounds}
    if lost := len(wanted - known):
        warnings.append(f"{lost} of {len(wanted)} steps are missing; their time is unattributed")
    names = {span.name for span in spans}
    for worker in ("verify", "draft"):
        if f"{worker}.forward" not in names and any(
            call.worker == worker
            for steps in timeline.steps.values()
            for step in steps
            for call in step.calls
        ):
            warnings.append(
                f"no spans of the {worker} service: give its trace file too, or its process standing still "
                "looks like the network"
            )
    return warnings
