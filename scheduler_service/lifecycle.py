"""Every change in the life of a request, with all that hangs on it: batch, books, metrics, spans."""

import time

from scheduler_service.accounting import StepTimes
from scheduler_service.batch import Batch
from scheduler_service.metrics import SchedulerMetrics
from scheduler_service.output import Finish, FinishReason
from scheduler_service.request import Request
from scheduler_service.requests import Requests
from scheduler_service.step import Progress, StepPart
from scheduler_service.step_trace import StepTrace
from spearhead.errors import Cancelled, DeadlineExceeded, SlowReader, SpearheadError


class Lifecycle:
    """Moves requests through their life.

    Args:
        requests: All of them.
        metrics: Where they are counted.
        aging_s: A waiting request gains one point of priority in this time.
    """

    def __init__(self, requests: Requests, metrics: SchedulerMetrics, *, aging_s: float) -> None:
        self._requests = requests
        self._metrics = metrics
        self._aging_s = aging_s

    def add(self, request: Request) -> None:
        """Lets a new request wait.

        Raises:
            RequestExists: Its id is taken.
        """
        depth, now_s = len(self._requests.waiting), time.monotonic()
        position = self._requests.add(request, self._aging_s)
        request.accounting.accepted_by_server(now_s)
        request.trace.queued(now_s, depth=depth, position=position, reason="slots")

    def start(self, request: Request, batch: Batch, now_s: float) -> None:
        """A waiting request runs in ``batch``."""
        first = not request.accounting.started
        self._requests.start(request, batch)
        request.accounting.start(now_s)
        request.trace.runs_on(batch.worker)
        request.trace.prefilling(now_s)
        if first:
            self._metrics.started(
                request.prompt_length, request.accounting.queue_s, trace_id=request.trace.trace_id
            )

    def rest(self, request: Request, now_s: float, reason: str) -> None:
        """No step computes anything for a running request until :meth:`resume`.

        Args:
            request: One that runs; nothing happens when it rests already.
            now_s: Since when.
            reason: ``worker_lost``, ``tokens`` or ``kv_blocks``.
        """
        if not request.accounting.resting:
            request.accounting.rest(now_s)
            request.trace.rest(now_s, reason)
            if reason == "worker_lost":
                request.trace.event("worker_lost", now_s)

    def resume(self, request: Request, now_s: float) -> None:
        """A step computes something for the request again."""
        if request.accounting.resting:
            request.accounting.resume(now_s)
            request.trace.resume(now_s)

    def preempt(self, request: Request) -> None:
        """A running request makes place and is computed again later."""
        now_s = time.monotonic()
        request.accounting.preempted()
        request.trace.event("preempted", now_s)
        self._put_back(request, now_s, "kv_blocks")
        self._metrics.preempted()

    def leave_worker(self, request: Request, now_s: float) -> None:
        """The worker of a running request is lost; it is computed again on another one."""
        self.rest(request, now_s, "worker_lost")
        self._put_back(request, now_s, "worker_lost")
        self._metrics.moved()

    def advance(
        self,
        part: StepPart,
        progress: Progress,
        times: StepTimes,
        *,
        step_id: int,
        start_s: float,
        trace: StepTrace,
        batch: Batch,
        draft_problem: str,
    ) -> int:
        """A step computed something for a request.

        Args:
            part: What it was to compute.
            progress: What it did.
            times: Where the time of the step went.
            step_id: The step.
            start_s: Its start, monotonic seconds.
            trace: Its spans.
            batch: Where the request runs.
            draft_problem: Why no request gets drafts there now; empty = they can.

        Returns:
            Tokens that became output.
        """
        request, now_s = part.request, time.monotonic()
        request.verify.computed_length = progress.computed_length
        request.failed_step_count = 0
        if part.decoding:
            request.accounting.decode_step(now_s, times)
        else:
            request.accounting.prefill_step(now_s)
            computed = progress.computed_length - part.committed_length
            request.trace.prefill_step(
                trace.span_context, tokens=computed, cached=progress.cached_token_count
            )
            if part.committed_length == 0 and not request.accounting.rounds:
                # At least one token of a prompt is always computed.
                cached = min(progress.cached_token_count, request.prompt_length - 1)
                request.accounting.cached_tokens = cached
                self._metrics.prefix_cache(queried=request.prompt_length, found=cached)
        if not progress.token_ids:
            return 0
        return self._commit(part, progress, step_id, start_s, now_s, batch, draft_problem)

    def finish(self, request: Request, finish: Finish) -> None:
        """The request reached its end."""
        now_s = time.monotonic()
        self._remove(request, now_s)
        summary = request.summary(now_s, finish)
        request.trace.end(now_s, summary)
        request.channel.end(summary)
        self._metrics.finished(summary, trace_id=request.trace.trace_id)

    def abort(self, request: Request) -> None:
        """The client ended the request by name; it gets what is there, and a proper end."""
        text = request.output.flush()
        if text:
            request.channel.put((), text)
        self.finish(request, Finish(reason=FinishReason.ABORT))

    def fail(self, request: Request, error: SpearheadError) -> None:
        """The request cannot go on. One that has ended stays as it is."""
        if request.ended:
            return
        now_s = time.monotonic()
        self._remove(request, now_s)
        summary = request.summary(now_s, Finish(reason=FinishReason.ERROR))
        request.trace.end(now_s, summary)
        request.channel.end(error)
        self._metrics.failed(error.reason.lower(), summary, trace_id=request.trace.trace_id)

    def cancel(self, request: Request) -> None:
        """Nobody wants the rest of the request."""
        now_s = time.monotonic()
        request.trace.event("cancelled", now_s)
        if request.deadline_s is not None and now_s >= request.deadline_s:
            self.fail(request, DeadlineExceeded(f"the deadline of request {request.request_id!r} passed"))
        else:
            self.fail(request, Cancelled(f"request {request.request_id!r} was cancelled by its client"))

    def _commit(
        self,
        part: StepPart,
        progress: Progress,
        step_id: int,
        start_s: float,
        now_s: float,
        batch: Batch,
        draft_problem: str,
    ) -> int:
        request, accounting = part.request, part.request.accounting
        last_s, drafted = accounting.last_token_s, len(part.draft_token_ids)
        output = request.output.push(progress.token_ids)
        kept = output.kept_count
        self._requests.commit(request, progress.token_ids[:kept], now_s)
        accepted = accounting.committed(now_s, kept=kept, drafted=drafted, accepted=progress.accepted)
        request.speculation.round(
            accounting.rounds, drafted=drafted, problem="" if drafted else draft_problem
        )
        batch.acceptance.observe(request.row, drafted=drafted, accepted=progress.accepted, step=step_id)
        self._metrics.round(
            kept=kept,
            drafted=drafted,
            accepted=accepted,
            since_last_s=None if last_s is None else now_s - last_s,
            trace_id=request.trace.trace_id,
        )
        if last_s is None:
            self._metrics.first_token(now_s - accounting.arrival_s, trace_id=request.trace.trace_id)
            request.trace.event("first_token", now_s)
        request.trace.round(
            step_id=step_id,
            start_s=start_s,
            emit_s=now_s,
            drafted=drafted,
            accepted=accepted,
            emitted=kept,
        )
        try:
            request.channel.put(progress.token_ids[:kept], output.text, progress.logprobs[:kept])
        except SlowReader as error:
            request.trace.event("client_too_slow", now_s)
            self.fail(request, error)
            return kept
        if output.finish is not None:
            self.finish(request, output.finish)
        return kept

    def _remove(self, request: Request, now_s: float) -> None:
        runs = self._requests.runs(request)
        if not runs:
            request.accounting.scheduled(now_s)
        self._requests.remove(request)
        if runs:
            self._requests.waiting.observe_finish(now_s)

    def _put_back(self, request: Request, now_s: float, reason: str) -> None:
        depth = len(self._requests.waiting)
        position = self._requests.put_back(request, self._aging_s)
        request.trace.queued(now_s, depth=depth, position=position, reason=reason)
