"""Applies the result of a step to the requests that took part."""

import logging
from collections.abc import Sequence

from scheduler_service.accounting import StepTimes
from scheduler_service.batch import Batch
from scheduler_service.drafting import Drafting
from scheduler_service.lifecycle import Lifecycle
from scheduler_service.proposals import Proposals
from scheduler_service.recovery import Recovery
from scheduler_service.step import StepPart, computed_token_count, interpret
from scheduler_service.step_trace import StepTrace
from scheduler_service.verifying import StepExchange, Verifying
from spearhead.errors import SpearheadError
from spearhead.v1 import verify_pb2

_logger = logging.getLogger("spearhead.scheduler")


class Applier:
    """Applies results; what goes wrong with one request stays with it.

    Args:
        lifecycle: Moves requests.
        batch: Where they run.
        recovery: Handles failures.
        verifying: Knows which pages are about to be freed.
        drafting: Learns which drafts were accepted.
        vocab_size: Of the target.
    """

    def __init__(
        self,
        lifecycle: Lifecycle,
        batch: Batch,
        recovery: Recovery,
        verifying: Verifying,
        drafting: Drafting,
        *,
        vocab_size: int,
    ) -> None:
        self._lifecycle = lifecycle
        self._batch = batch
        self._recovery = recovery
        self._verifying = verifying
        self._drafting = drafting
        self._vocab_size = vocab_size

    def apply(
        self,
        parts: Sequence[StepPart],
        proposals: Proposals,
        exchange: StepExchange,
        trace: StepTrace,
        *,
        step_id: int,
        start_s: float,
    ) -> None:
        """Applies a step.

        Args:
            parts: What was sent.
            proposals: The drafts in it.
            exchange: What came back.
            trace: The spans of the step.
            step_id: The step.
            start_s: Its start, monotonic seconds.
        """
        results = exchange.reply.results
        if len(results) != len(parts):
            error = SpearheadError(f"the verify service answered {len(results)} of {len(parts)} items")
            self._recovery.step_failed(parts, error, start_s)
            return
        times = StepTimes(
            draft_s=proposals.worker_s,
            verify_s=exchange.worker_s,
            network_s=proposals.network_s + exchange.network_s,
        )
        short_of_pages = False
        for part, result in zip(parts, results, strict=True):
            if part.request.ended or self._recovery.is_stale(part, result):
                continue
            if result.HasField("error"):
                short_of_pages |= self._recovery.item_failed(part, result.error)
                continue
            try:
                self._advance(part, result, proposals, times, trace, step_id, start_s)
            except SpearheadError as error:
                self._lifecycle.fail(part.request, error)
            except Exception as error:  # A defect that one request meets must not end the others.
                _logger.exception("request %s failed", part.request.request_id)
                self._lifecycle.fail(part.request, SpearheadError(f"internal error: {error!r}"))
        # What ended in this very step frees its pages with the next message; that may be enough.
        if short_of_pages and not self._verifying.releases_pending and not self._recovery.preempt_one():
            self._recovery.count_shortage()

    def _advance(
        self,
        part: StepPart,
        result: verify_pb2.StepItemResult,
        proposals: Proposals,
        times: StepTimes,
        trace: StepTrace,
        step_id: int,
        start_s: float,
    ) -> None:
        progress = interpret(part, result, self._vocab_size)
        computed = computed_token_count(part, result)
        if part.draft_token_ids:
            part.request.trace.drafted_by(self._drafting.worker)
        kept = self._lifecycle.advance(
            part,
            progress,
            times,
            step_id=step_id,
            start_s=start_s,
            trace=trace,
            batch=self._batch,
            draft_problem=self._drafting.inactive_reason,
        )
        self._drafting.judged(part, proposals, progress.accepted)
        trace.member(
            part.request,
            {
                "tokens": kept or computed,
                "computed_tokens": computed,
                "drafted": len(part.draft_token_ids),
                "accepted": min(progress.accepted, max(kept - 1, 0)),
            },
        )
