"""Who runs: admission from the queue as pages allow, and a plan that fits into them."""

import time

from scheduler_service.batch import Batch
from scheduler_service.lifecycle import Lifecycle
from scheduler_service.planner import Planner
from scheduler_service.recovery import Recovery
from scheduler_service.request import Request
from scheduler_service.step_plan import StepPlan
from scheduler_service.verifying import Verifying
from spearhead.errors import DeadlineExceeded


class Room:
    """Fits requests into the target's pages.

    Args:
        batch: The requests.
        lifecycle: Moves them.
        verifying: Knows the pages.
        planner: Plans steps.
        recovery: Makes place.
        max_running_requests: Most requests that run.
    """

    def __init__(
        self,
        batch: Batch,
        lifecycle: Lifecycle,
        verifying: Verifying,
        planner: Planner,
        recovery: Recovery,
        *,
        max_running_requests: int,
    ) -> None:
        self._batch = batch
        self._lifecycle = lifecycle
        self._verifying = verifying
        self._planner = planner
        self._recovery = recovery
        self._max_running_requests = max_running_requests

    def admit(self, now_s: float) -> None:
        """Starts waiting requests in their order, as long as there is room. An empty batch takes any."""
        batch = self._batch
        while len(batch.waiting) and batch.running_count < self._max_running_requests:
            request = batch.waiting.first()
            if request.deadline_s is not None and now_s >= request.deadline_s:
                self._lifecycle.fail(
                    request, DeadlineExceeded("the deadline passed while the request waited")
                )
            elif batch.running_count and self._pages_to_start(request) > self._unclaimed_pages():
                request.trace.waits_for("kv_blocks")
                return
            else:
                self._lifecycle.start(request, now_s)
                self._verifying.attach(request)

    def plan(self, step: int) -> StepPlan | None:
        """The next step, if the pages suffice.

        Returns:
            ``None`` when somebody had to make place: the worker must free it first. A plan without
            sequences when nothing runs.
        """
        plan = self._planner.plan(
            self._batch,
            step=step,
            page_size=self._verifying.page_size,
            free_page_count=self._verifying.free_page_count,
            now_s=time.monotonic(),
        )
        if not plan.resting_ids:
            return plan
        resting = self._let_rest(plan)
        stuck = not plan.sequence_count
        if not stuck and not (plan.limiting == "pages" and any(request.decoding for request in resting)):
            return plan
        # What is about to be freed may be enough; only then somebody has to make place.
        if self._verifying.releases_pending or self._recovery.preempt_one():
            return None
        if stuck:
            self._recovery.fail_the_only_one()
            return None
        return plan

    def _let_rest(self, plan: StepPlan) -> list[Request]:
        """Those that the plan leaves out wait, although they run."""
        resting = [self._batch.running_by_id(sequence_id) for sequence_id in plan.resting_ids]
        now_s, reason = time.monotonic(), "kv_blocks" if plan.limiting == "pages" else "tokens"
        for request in resting:
            self._lifecycle.rest(request, now_s, reason)
        return resting

    def _pages_to_start(self, request: Request) -> int:
        """Pages of its known tokens, and one to go on with."""
        return self._verifying.pages(len(request.token_ids)) + 1

    def _unclaimed_pages(self) -> int:
        """Free pages that the running requests do not need for the tokens they have."""
        pages = self._verifying.pages
        missing = sum(
            pages(len(request.token_ids)) - pages(request.verify.computed_length)
            for request in self._batch.running
        )
        return self._verifying.free_page_count - missing
