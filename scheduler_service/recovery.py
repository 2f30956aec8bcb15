"""What to do when something went wrong: with one item, with a whole step, or for lack of pages."""

import logging
import time
from collections.abc import Sequence

from scheduler_service.batch import Batch
from scheduler_service.lifecycle import Lifecycle
from scheduler_service.metrics import SchedulerMetrics
from scheduler_service.request import Request
from scheduler_service.requests import Requests
from scheduler_service.step import StepPart
from scheduler_service.wire import RESTART_REASONS, RETRY_AFTER_S
from spearhead.errors import NotReady, Overloaded, PrecisionUnavailable, SpearheadError
from spearhead.v1 import types_pb2, verify_pb2

_logger = logging.getLogger("spearhead.scheduler")


class Recovery:
    """Recovers, or fails only those requests that cannot go on.

    Args:
        requests: All requests.
        batch: Those that run on the worker.
        lifecycle: Moves them.
        metrics: Where stale replies are counted.
        max_failed_steps: A request fails after so many failures without progress.
    """

    def __init__(
        self,
        requests: Requests,
        batch: Batch,
        lifecycle: Lifecycle,
        metrics: SchedulerMetrics,
        *,
        max_failed_steps: int,
    ) -> None:
        self._requests = requests
        self._batch = batch
        self._lifecycle = lifecycle
        self._metrics = metrics
        self._max_failed_steps = max_failed_steps

    def is_stale(self, part: StepPart, result: verify_pb2.StepItemResult) -> bool:
        """Whether the result is not about the sequence as it is now.

        One that is not even about what was asked counts as a failure: the service lost track of it.
        """
        request = part.request
        if (result.sequence_id, result.epoch) != (request.sequence_id, part.epoch):
            self._metrics.stale_reply("verify")
            request.verify.restart()
            problem = (
                f"the verify service keeps answering about sequence {result.sequence_id} in epoch "
                f"{result.epoch}, not {request.sequence_id} in {part.epoch}"
            )
            self._count_failure(request, SpearheadError(problem))
            return True
        if part.epoch != request.verify.epoch:
            self._metrics.stale_reply("verify")
            return True
        return False

    def item_failed(self, part: StepPart, error: types_pb2.ItemError) -> bool:
        """One item could not be computed.

        Returns:
            Whether it was for lack of pages, so that somebody must make place.
        """
        request = part.request
        _logger.info("request %s: %s", request.request_id, error.message)
        if error.reason == types_pb2.ITEM_ERROR_REASON_OUT_OF_PAGES:
            return True
        if error.reason in RESTART_REASONS:
            request.verify.restart()
            request.trace.event("kv_evicted", time.monotonic())
            self._count_failure(
                request, SpearheadError(f"the verify service keeps losing it: {error.message}")
            )
        elif error.reason == types_pb2.ITEM_ERROR_REASON_PRECISION_UNAVAILABLE:
            self._lifecycle.fail(request, PrecisionUnavailable(error.message, field="precision"))
        elif part.draft_token_ids:
            # The drafts may be at fault, and they must not change what the client gets.
            self._requests.refuse_drafts(request)
        else:
            self._lifecycle.fail(request, SpearheadError(f"the target cannot compute it: {error.message}"))
        return False

    def step_failed(self, parts: Sequence[StepPart], error: SpearheadError, start_s: float) -> None:
        """A whole step is lost, with all that the worker held; who cannot wait longer fails.

        Args:
            parts: What was to be computed.
            error: Why it was not.
            start_s: Start of the step, monotonic seconds; since then they wait.
        """
        for part in parts:
            if not part.request.ended:
                self._lifecycle.rest(part.request, start_s, "worker_lost")
                self._count_failure(part.request, NotReady(error.message, retry_after_s=RETRY_AFTER_S))

    def preempt_one(self) -> bool:
        """Makes place; ``False`` when only one request runs, which nothing is taken from."""
        victim = self._batch.preemption_victim()
        if victim is None:
            return False
        _logger.info("request %s is preempted for lack of KV pages", victim.request_id)
        self._lifecycle.preempt(victim)
        return True

    def count_shortage(self) -> None:
        """The only running request found no pages: other clients of the service hold them.

        They free some with every request that ends, so it tries again; but not for ever, since its own pages
        may be those that another client waits for.
        """
        for request in self._batch.running:
            error = Overloaded(
                f"request {request.request_id!r} found no free KV pages although it ran alone, and made no "
                f"progress in {request.failed_step_count + 1} steps (limits.max_failed_steps is "
                f"{self._max_failed_steps}); other clients of the verify service hold them; try again later",
                retry_after_s=RETRY_AFTER_S,
            )
            self._count_failure(request, error)

    def _count_failure(self, request: Request, error: SpearheadError) -> None:
        request.failed_step_count += 1
        if request.failed_step_count > self._max_failed_steps:
            self._lifecycle.fail(request, error)
