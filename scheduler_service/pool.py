"""The engines, one for each verify worker that is known: they come and go with the workers' addresses."""

import asyncio
import itertools
import logging
import time
from collections.abc import Callable

from scheduler_service.addresses import Addresses
from scheduler_service.engine import Engine
from scheduler_service.peers import DraftInfo, VerifyInfo
from scheduler_service.placement import Placement
from scheduler_service.wire import RETRY_AFTER_S
from scheduler_service.worker_link import LinkState
from spearhead.errors import NotReady, StartupError

_logger = logging.getLogger("spearhead.scheduler")


class Pool:
    """Owns the engines.

    Args:
        verify: Where the verify workers are.
        draft: Where the draft workers are; ``None`` = plain decoding.
        engines: The list of engines, empty; shared with ``placement``.
        placement: Hands out requests.
        make_engine: Makes the engine of a number and the verify worker's address.
        resolve_interval_s: Names of workers are looked up so often.
    """

    def __init__(
        self,
        verify: Addresses,
        draft: Addresses | None,
        engines: list[Engine],
        placement: Placement,
        make_engine: Callable[[int, str], Engine],
        *,
        resolve_interval_s: float,
    ) -> None:
        self._verify = verify
        self._draft = draft
        self.engines = engines
        self._placement = placement
        self._make_engine = make_engine
        self._interval_s = resolve_interval_s
        self._numbers = itertools.count()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._retired_step_count = 0
        self._add_new()

    @property
    def ready(self) -> bool:
        """Whether at least one verify worker is connected."""
        return any(engine.ready for engine in self.engines)

    @property
    def ready_engines(self) -> list[Engine]:
        """Those whose verify worker is connected."""
        return [engine for engine in self.engines if engine.ready]

    @property
    def problem(self) -> str:
        """What is wrong with the verify workers, in words."""
        if not self.engines:
            return "no address of a verify service is known; is anything behind its name in DNS?"
        return "; ".join(engine.problem for engine in self.engines if not engine.ready)

    @property
    def target(self) -> VerifyInfo:
        """What is served: by the verify worker with the longest sequences, connected ones first.

        Raises:
            NotReady: None was ever connected.
        """
        known = [
            (engine.ready, info.target.longest, -engine.number, info)
            for engine in self.engines
            if (info := engine.verifying.info) is not None
        ]
        if not known:
            raise NotReady(self.problem, retry_after_s=RETRY_AFTER_S)
        return max(known, key=lambda entry: entry[:3])[3]

    @property
    def variant(self) -> str:
        """The variant that computed the last step of some connected worker; empty = there was none."""
        return next((e.verifying.variant for e in self.ready_engines if e.verifying.variant), "")

    @property
    def kv_cache_usage(self) -> float:
        """Share of all KV pages in use, 0..1."""
        pages = [(e.target.page_count, e.verifying.kv_cache_usage) for e in self.ready_engines if e.target]
        return sum(count * usage for count, usage in pages) / max(1, sum(count for count, _ in pages))

    @property
    def draft_available(self) -> bool:
        """Whether some engine has a drafter."""
        return any(engine.drafting.available for engine in self.engines)

    @property
    def draft_info(self) -> DraftInfo | None:
        """What a connected drafter said of itself."""
        return next((info for e in self.engines if (info := e.drafting.info) is not None), None)

    @property
    def draft_status(self) -> str:
        """``ready``, ``absent``, ``lost: …`` or ``refused: …``: the best of all engines."""
        if self._draft is None:
            return "absent"
        states = [engine.drafting.status for engine in self.engines]
        return "ready" if "ready" in states else next(iter(states), "lost: no verify service is known")

    @property
    def busy(self) -> bool:
        """Whether there are requests that could make progress now."""
        return any(engine.loop.busy for engine in self.engines)

    @property
    def last_progress_s(self) -> float:
        """Monotonic time of the last progress of the busy engine that made none for longest."""
        loops = [engine.loop for engine in self.engines]
        busy = [loop.last_progress_s for loop in loops if loop.busy]
        idle = [loop.last_progress_s for loop in loops]
        return min(busy) if busy else max(idle, default=time.monotonic())

    @property
    def step_count(self) -> int:
        """Steps completed."""
        return self._retired_step_count + sum(engine.loop.step_count for engine in self.engines)

    def wake(self) -> None:
        """A request came or went."""
        for engine in self.engines:
            engine.loop.wake()

    def worker_changed(self) -> None:
        """A worker came or went."""
        for engine in self.engines:
            engine.changed()

    def check_start(self) -> None:
        """Tells verify services that will never do from ones that are not there yet.

        Raises:
            StartupError: They all answered, and none fits.
        """
        refused = [e for e in self.engines if e.link.state is LinkState.REFUSED and e.link.info is None]
        if refused and len(refused) == len(self.engines):
            raise StartupError(refused[0].link.detail)

    async def run(self) -> None:
        """Runs the engines until cancelled; ends otherwise only by a defect."""
        dynamic = self._verify.dynamic or (self._draft is not None and self._draft.dynamic)
        try:
            while True:
                if dynamic:
                    await self._refresh()
                for engine in self.engines:
                    if engine.number not in self._tasks:
                        self._tasks[engine.number] = asyncio.create_task(engine.run())
                pause = asyncio.create_task(asyncio.sleep(self._interval_s if dynamic else 3600.0))
                tasks = {pause, *self._tasks.values()}
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                pause.cancel()
                for task in done:
                    task.result()
        finally:
            for task in self._tasks.values():
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks.values())

    async def _refresh(self) -> None:
        for addresses in (self._verify, self._draft):
            if addresses is not None:
                await addresses.refresh()
        self._add_new()
        for engine in list(self.engines):
            if engine.address not in self._verify.known:
                await self._retire(engine)

    def _add_new(self) -> None:
        present = {engine.address for engine in self.engines}
        for address in self._verify.known:
            if address not in present:
                self.engines.append(self._make_engine(next(self._numbers), address))

    async def _retire(self, engine: Engine) -> None:
        """Ends an engine whose worker is gone for good; one that still works, or is all we have, stays."""
        if engine.ready or not self.ready or engine.batch.running_count:
            return
        _logger.info("%s is gone", engine.link.name)
        self.engines.remove(engine)
        self._retired_step_count += engine.loop.step_count
        task = self._tasks.pop(engine.number)
        task.cancel()
        await asyncio.wait([task])
        self._placement.fail_misfits(self.target.target)
