"""The pages of one worker: what they have room for, and a plan that fits into them."""

import time

from scheduler_service.batch import Batch
from scheduler_service.lifecycle import Lifecycle
from scheduler_service.planner import Planner
from scheduler_service.recovery import Recovery
from scheduler_service.request import Request
from scheduler_service.step_plan import StepPlan
from scheduler_service.verifying import Verifying


class Room:
    """Fits requests into the target's pages.

    Args:
        batch: The requests.
        lifecycle: Moves them.
        verifying: Knows the pages.
        planner: Plans steps.
        recovery: Makes place.
    """

    def __init__(
        self,
        batch: Batch,
        lifecycle: Lifecycle,
        verifying: Verifying,
        planner: Planner,
        recovery: Recovery,
    ) -> None:
        self._batch = batch
        self._lifecycle = lifecycle
        self._verifying = verifying
        self._planner = planner
        self._recovery = recovery

    def plan(self, step: int) -> StepPlan | None:
        """The next step, if the pages suffice.

        Returns:
            ``None`` when there are too few: the worker must free some first, or say whether others did. A
            plan without sequences when nothing runs.
        """
        plan = self._planner.plan(
            self._batch,
            step=step,
            page_size=self._verifying.page_size,
            free_page_count=self._verifying.free_page_count,
            max_sequence_tokens=self._verifying.max_sequence_tokens,
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
            self._recovery.count_shortage()
            return None
        return plan

    def pages_to_start(self, request: Request) -> int:
        """Pages of its known tokens, and one to go on with."""
        return self._verifying.pages(len(request.token_ids)) + 1

    def unclaimed_pages(self) -> int:
        """Free pages that the running requests do not need for the tokens they have."""
        pages = self._verifying.pages
        missing = sum(
            pages(len(request.token_ids)) - pages(request.verify.computed_length)
            for request in self._batch.running
        )
        return self._verifying.free_page_count - missing

    def _let_rest(self, plan: StepPlan) -> list[Request]:
        """Those that the plan leaves out wait, although they run."""
        resting = [self._batch.running_by_id(sequence_id) for sequence_id in plan.resting_ids]
        now_s, reason = time.monotonic(), "kv_blocks" if plan.limiting == "pages" else "tokens"
        for request in resting:
            self._lifecycle.rest(request, now_s, reason)
        return resting
