"""Where the time between two outputs of a request went, to the nanosecond.

An engine runs one step after another, so its steps in a gap, whether the request took part or not, and the
times between them cover it. Each step is taken apart by its calls to workers; then what kept the request out
of steps, and what stopped a whole process, is painted over that. A request that lost its worker goes on in
another engine, whose steps count from there.
"""

from collections.abc import Iterable

from spearhead.trace.records import Call, Request, Stall, Step
from spearhead.trace.tiles import Cause, OthersPrompts, Tile, Tiles, in_words
from spearhead.trace.timeline import Timeline, engine_of

_WORKER_CAUSES = {"verify": Cause.VERIFY, "draft": Cause.DRAFT}


class Attribution:
    """Takes the gaps of one request apart.

    Args:
        timeline: What happened.
        request: Whose gaps.
        typical_verify_ns: The verify service's time for a step without prompt tokens; ``None`` = unknown.
    """

    def __init__(self, timeline: Timeline, request: Request, typical_verify_ns: int | None) -> None:
        self._timeline = timeline
        self._request = request
        self._typical_verify_ns = typical_verify_ns

    def tiles(self, start_ns: int, end_ns: int, step_id: int, before: int | None) -> tuple[Tile, ...]:
        """Divides a gap.

        Args:
            start_ns: Its start: the arrival, or when the output before was taken.
            end_ns: Its end: when this output was taken.
            step_id: Number of the step that brought this output.
            before: Number of the step that brought the output before; ``None`` = there was none.
        """
        tiles = Tiles(start_ns, end_ns)
        engine, first = engine_of(step_id), before is None
        around = self._timeline.steps_between(self._request.process, engine, start_ns, end_ns)
        if before is not None and engine_of(before) != engine:
            before = None  # Steps of two engines are not consecutive.
        catch_ups = [step for step in around if step.beside]
        turns = [step for step in around if not step.beside]
        gap = _Gap(self._request, start_ns, end_ns, first=first)
        self._paint_between(tiles, gap, turns, before)
        for step in turns:
            self._paint_step(tiles, gap, step, catch_ups)
        for wait in self._request.waits:
            tiles.paint(wait.start_ns, wait.end_ns, gap.wait_cause(wait.reason), f"waited for {wait.reason}")
        for blocked in self._request.blocked:
            tiles.paint(blocked.start_ns, blocked.end_ns, Cause.SLOW_READER, "the client took nothing")
        for stall in self._timeline.stalls.get(self._request.process, ()):
            note = f"the scheduler's process {_how(stall)}"
            tiles.paint(stall.start_ns, stall.end_ns, Cause.SCHEDULER, note)
        return tuple(tiles)

    def _paint_between(self, tiles: Tiles, gap: "_Gap", steps: Iterable[Step], before: int | None) -> None:
        """The times between steps are the scheduler's, unless steps are missing there."""
        cause = Cause.WORKER_RESTART if gap.lost_worker else Cause.SCHEDULER
        note = "no worker" if gap.lost_worker else "between two steps"
        until_ns = gap.start_ns
        for step in steps:
            if before is None or step.step_id - before <= 1 or gap.lost_worker:
                tiles.paint(until_ns, step.start_ns, cause, note)
            else:
                missing = f"{step.step_id - before - 1} steps are not recorded"
                tiles.paint(until_ns, step.start_ns, Cause.UNATTRIBUTED, missing)
            until_ns, before = max(until_ns, step.end_ns), step.step_id

    def _paint_step(self, tiles: Tiles, gap: "_Gap", step: Step, catch_ups: Iterable[Step]) -> None:
        if step.error:
            tiles.paint(step.start_ns, step.end_ns, Cause.WORKER_RESTART, step.error)
            return
        tiles.paint(step.start_ns, step.end_ns, Cause.SCHEDULER, "planning and handing on")
        for call in step.calls:
            if call.error:
                tiles.paint(call.start_ns, call.end_ns, Cause.DRAFT, call.error)
                continue
            begin_ns, end_ns = _worker_interval(call)
            tiles.paint(call.start_ns, call.end_ns, Cause.NETWORK, f"to the {call.worker} service and back")
            self._paint_worker_stalls(tiles, call, busy=True)  # it could not read, which is not the network
            if call.worker == "verify":
                self._paint_verify(tiles, gap, step, begin_ns, end_ns)
            else:
                tiles.paint(begin_ns, end_ns, Cause.DRAFT, "drafting")
                self._paint_draft_wait(tiles, call, begin_ns, catch_ups)
            tiles.paint(
                call.end_ns - call.loop_lag_ns, call.end_ns, Cause.SCHEDULER, "the event loop was late"
            )
            self._paint_worker_stalls(tiles, call, busy=False)

    def _paint_verify(self, tiles: Tiles, gap: "_Gap", step: Step, begin_ns: int, end_ns: int) -> None:
        member = step.members.get(self._request.request_id)
        duration_ns = end_ns - begin_ns
        if member is None:
            if step.prefill_tokens:
                self._paint_others(tiles, step, begin_ns, end_ns)
            else:
                tiles.paint(begin_ns, end_ns, Cause.QUEUE, "a step without this request")
            return
        own_ns, cause, note = duration_ns, Cause.VERIFY, "verifying"
        if member.role != "decode":
            share = member.computed_tokens / max(step.prefill_tokens, member.computed_tokens, 1)
            own_ns, cause, note = round(duration_ns * share), gap.prefill_cause(), gap.prefill_note
        elif step.prefill_tokens and self._typical_verify_ns is not None:
            own_ns = min(duration_ns, self._typical_verify_ns)
        elif step.prefill_tokens:
            own_ns = round(duration_ns * (1 - step.prefill_tokens / max(step.tokens, 1)))
        tiles.paint(begin_ns, begin_ns + own_ns, cause, note)
        self._paint_others(tiles, step, begin_ns + own_ns, end_ns)

    def _paint_others(self, tiles: Tiles, step: Step, begin_ns: int, end_ns: int) -> None:
        prompts = self._others(step)
        tiles.paint(begin_ns, end_ns, Cause.PREFILL_OF_OTHERS, in_words([prompts]), prompts)

    def _paint_draft_wait(self, tiles: Tiles, call: Call, begin_ns: int, catch_ups: Iterable[Step]) -> None:
        """The drafter may have been busy with somebody's prompt."""
        if not call.wait_ns:
            return
        end_ns = begin_ns + call.wait_ns
        names = {
            member.request_id
            for catch_up in catch_ups
            if catch_up.start_ns < end_ns and catch_up.end_ns > begin_ns
            for member in catch_up.members.values()
        }
        others = sorted(names - {self._request.request_id})
        cause = Cause.PREFILL_OF_OTHERS if others else Cause.DRAFT
        note = (
            f"the drafter computed the prompt of {', '.join(others)}" if others else "waited for the drafter"
        )
        tiles.paint(begin_ns, end_ns, cause, note)

    def _paint_worker_stalls(self, tiles: Tiles, call: Call, *, busy: bool) -> None:
        cause = _WORKER_CAUSES[call.worker] if busy else Cause.WORKER_STALL
        for stall in self._timeline.worker_stalls.get((self._request.process, call.worker), ()):
            if stall.busy is busy and call.process in ("", stall.process):
                start_ns, end_ns = max(stall.start_ns, call.start_ns), min(stall.end_ns, call.end_ns)
                tiles.paint(start_ns, end_ns, cause, f"the {call.worker} service's process {_how(stall)}")

    def _others(self, step: Step) -> OthersPrompts:
        """Whose prompt tokens a step computed beside this request's."""
        tokens = {
            member.request_id: member.computed_tokens
            for member in step.members.values()
            if member.role == "prefill" and member.request_id != self._request.request_id
        }
        own = step.members.get(self._request.request_id)
        own_tokens = own.computed_tokens if own is not None and own.role == "prefill" else 0
        hidden = step.prefill_tokens - own_tokens - sum(tokens.values())
        return OthersPrompts(step_id=step.step_id, tokens=tokens, unrecorded_tokens=max(hidden, 0))


class _Gap:
    """What befell the request in a gap, which tells why it had to be computed again."""

    def __init__(self, request: Request, start_ns: int, end_ns: int, *, first: bool) -> None:
        self.start_ns = start_ns
        self._first = first
        self._preempted = request.happened("preempted", start_ns, end_ns)
        self._evicted = request.happened("kv_evicted", start_ns, end_ns)
        self.lost_worker = request.happened("worker_lost", start_ns, end_ns)

    def prefill_cause(self) -> Cause:
        """Why tokens are computed that were known before."""
        if self._first or not (self._preempted or self.lost_worker):
            return Cause.OWN_PREFILL
        return Cause.PREEMPTION if self._preempted else Cause.WORKER_RESTART

    @property
    def prefill_note(self) -> str:
        """The same in words."""
        if self._first:
            return "its own prompt"
        return "computed again" + (": the verify service had forgotten it" if self._evicted else "")

    def wait_cause(self, reason: str) -> Cause:
        """Why the request was in no step."""
        if reason == "worker_lost":
            return Cause.WORKER_RESTART
        return Cause.PREEMPTION if reason == "kv_blocks" and self._preempted else Cause.QUEUE


def _worker_interval(call: Call) -> tuple[int, int]:
    """Where the worker's own time lies within a call: in the middle, since only its length is known."""
    until_ns = call.end_ns - call.loop_lag_ns
    if call.total_ns is None:
        return call.start_ns, until_ns
    total_ns = min(call.total_ns, until_ns - call.start_ns)
    begin_ns = call.start_ns + (until_ns - call.start_ns - total_ns) // 2
    return begin_ns, begin_ns + total_ns


def _how(stall: Stall) -> str:
    return "was busy and let nothing else in" if stall.busy else "stood still"
