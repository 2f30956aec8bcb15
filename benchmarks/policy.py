"""How long one plan takes: ``python -m benchmarks.policy``.

The claim: below 200 us at the 99th percentile with 256 running requests. ``room`` is the whole decision as
the engine takes it, collecting the requests' state included. The batch moves as it would: between two plans,
which is not measured, every sequence grows by what its drafts brought, prompts advance by their chunks,
estimates follow what was accepted, and who is done makes place for another. Prints a table for people and,
as the last line, the same as one JSON document; ``cpu`` is the thread's own time, which other processes of
the machine disturb less.
"""

import argparse
import gc
import itertools
import json
import math
import platform
import random
import time
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from opentelemetry.trace import INVALID_SPAN, NoOpTracer
from prometheus_client import CollectorRegistry

from scheduler_service.acceptance import AcceptanceConfig, AcceptanceTracker
from scheduler_service.accounting import Accounting
from scheduler_service.batch import Batch
from scheduler_service.config import LimitsSection
from scheduler_service.decode_batch import DecodeBatch
from scheduler_service.delivery import OutputChannel
from scheduler_service.draft_patience import DraftPatience
from scheduler_service.drafting import Drafting
from scheduler_service.latency_table import LatencyEntry, LatencyTable, ModelProfile
from scheduler_service.lifecycle import Lifecycle
from scheduler_service.links import LinkFactory
from scheduler_service.metrics import SchedulerMetrics
from scheduler_service.output import OutputAssembler
from scheduler_service.peers import DraftInfo, VerifyInfo
from scheduler_service.planner import Planner
from scheduler_service.policy import BatchView, PlanMemory, PolicyConfig, PromptView, StepPlan, plan
from scheduler_service.recovery import Recovery
from scheduler_service.request import Request
from scheduler_service.requests import Requests
from scheduler_service.room import Room
from scheduler_service.spec import GenerationSpec
from scheduler_service.step_plan import PolicyKind
from scheduler_service.tracing import RequestTrace, WallClock
from scheduler_service.verifying import Verifying
from scheduler_service.worker_link import LinkState
from spearhead.rpc import TargetConfig
from spearhead.v1 import types_pb2

ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
CONTEXTS = (0, 128, 512, 2048, 8192)
KINDS: tuple[PolicyKind, ...] = ("table", "linear", "static")
BATCHES = ((1, 0, None), (32, 2, 0.05), (256, 0, None), (256, 8, None), (256, 8, 0.1))
PERCENTILES = (10, 50, 90, 99)
CPU_PERCENTILES = (50, 99)
PAGE_SIZE, FREE_PAGES, MAX_STEP_TOKENS = 16, 1 << 20, 2048
LIMIT_US = 200.0


def profile(scale: float) -> ModelProfile:
    """A device whose passes cost nothing more up to 64 rows; ``scale`` is the cost against the target's."""
    latencies = [
        LatencyEntry(op="overhead", rows=1, median_us=300.0 * scale),
        *(LatencyEntry(op="linear", rows=r, median_us=8000 * scale * max(1, r / 64)) for r in ROWS),
        *(LatencyEntry(op="head", rows=r, median_us=500 * scale * max(1, r / 64)) for r in ROWS),
        *(
            LatencyEntry(op="attention", rows=r, context=c, median_us=scale * (4 + r * (c + r / 2) / 4000))
            for r in (1, 4, 16, 64, 256, 1024)
            for c in CONTEXTS
        ),
    ]
    return ModelProfile(device="model", versions=(), revision="", variant="", latencies=tuple(latencies))


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One batch to plan for.

    Attributes:
        kind: The policy.
        count: Running requests.
        prompts: Of these, still in their prompt.
        slo_s: Wanted time between tokens of all; None = no wish.
    """

    kind: PolicyKind
    count: int
    prompts: int
    slo_s: float | None


class PlanRun:
    """The pure function, step after step on a batch that moves.

    Args:
        case: The batch; its sequences are as unlike as they can be.
        table: The latencies.
    """

    def __init__(self, case: Case, table: LatencyTable) -> None:
        source = self._source = np.random.default_rng(case.count)
        self._table, self._config, self._memory = table, PolicyConfig(kind=case.kind), PlanMemory()
        decoding = case.count - case.prompts
        self._truth = source.random(decoding)
        self._estimates = self._truth.copy()
        self._contexts = source.integers(0, 8000, decoding)
        self._itl_slo_s = np.full(decoding, math.nan if case.slo_s is None else case.slo_s)
        self._caps = source.choice((8, 8, 8, 3, 1), decoding)
        self._ids = np.arange(decoding)
        self._prompts = [self._prompt(decoding + i) for i in range(case.prompts)]
        self._view = self._next_view()

    def decide(self, step: int) -> StepPlan:
        """One plan: what is measured."""
        return plan(self._view, self._table, self._config, memory=self._memory)

    def advance(self, step: int, result: StepPlan) -> None:
        """What the plan leads to."""
        self._memory = result.memory
        drafts = np.array(result.draft_counts)
        accepted = np.minimum(self._source.geometric(1 - 0.99 * self._truth) - 1, drafts)
        self._contexts = np.where(self._contexts < 16_000, self._contexts + accepted + 1, 1)
        self._estimates += 0.05 * (self._truth + self._source.normal(0, 0.3, len(drafts)) - self._estimates)
        np.clip(self._estimates, 0, 1, out=self._estimates)
        chunks = {chunk.sequence_id: chunk.compute_token_count for chunk in result.chunks}
        self._prompts = [self._later(prompt, chunks.get(prompt.sequence_id, 0)) for prompt in self._prompts]
        self._view = self._next_view()

    def _next_view(self) -> BatchView:
        count = len(self._ids)
        return BatchView(
            decoding=DecodeBatch(
                sequence_ids=self._ids,
                contexts=self._contexts,
                draft_caps=self._caps,
                draft_lags=self._source.integers(0, 2, count),
                acceptances=self._estimates.copy(),
                itl_slo_s=self._itl_slo_s,
                since_last_s=np.full(count, 0.0005),
            ),
            prompts=self._prompts,
            draft_available=True,
            page_size=PAGE_SIZE,
            free_page_count=FREE_PAGES,
            max_step_tokens=MAX_STEP_TOKENS,
        )

    def _prompt(self, sequence_id: int) -> PromptView:
        length = int(self._source.integers(64, 4096))
        return PromptView(sequence_id, length, 0, waited_s=float(self._source.random()))

    def _later(self, prompt: PromptView, computed: int) -> PromptView:
        if computed == prompt.pending_token_count:
            return self._prompt(prompt.sequence_id)
        return prompt._replace(
            pending_token_count=prompt.pending_token_count - computed,
            context_length=prompt.context_length + computed,
            waited_s=prompt.waited_s + 0.01,
        )


class _NoText:
    def push(self, ids: object) -> str:
        return ""

    def flush(self) -> str:
        return ""


class RoomRun:
    """The engine's own planning, step after step over requests that live as they would, without workers.

    Args:
        case: The batch.
        table: The latencies.
    """

    def __init__(self, case: Case, table: LatencyTable) -> None:
        self._case, self._source, self._ids = case, random.Random(case.count), itertools.count(1)
        metrics = SchedulerMetrics(CollectorRegistry())
        self._requests = Requests()
        self._batch = batch = Batch(self._requests.roster, AcceptanceTracker(AcceptanceConfig()))
        info = types_pb2.ModelInfo(
            revision="", context_length=1 << 20, kv_page_size=PAGE_SIZE, kv_page_count=FREE_PAGES
        )
        nowhere = TargetConfig(address="unix:/nowhere")
        links = LinkFactory(LimitsSection(), "", None, metrics, on_change=lambda: None)
        verify_link, draft_link = links.verify(lambda: nowhere), links.draft(lambda: nowhere)
        self._info = verify_link.info = VerifyInfo(model=info, variant="")
        draft_link.info = DraftInfo(model=info, max_draft_tokens=8)
        verify_link.state = draft_link.state = LinkState.READY
        verify_link.session = draft_link.session = 1
        self._verifying = Verifying(verify_link, batch.verify_releases, metrics, timeout_s=1.0)
        self._drafting = Drafting(
            draft_link, batch.draft_releases, metrics, vocab_size=1 << 20, patience=DraftPatience(1.0, 3)
        )
        self._planner = Planner(
            PolicyConfig(kind=case.kind),
            table,
            self._drafting,
            max_draft_tokens=8,
            max_step_tokens=MAX_STEP_TOKENS,
        )
        self._lifecycle = Lifecycle(self._requests, metrics, aging_s=1.0)
        recovery = Recovery(self._requests, batch, self._lifecycle, metrics, max_failed_steps=1)
        self._verifying.renew()
        self._room = Room(batch, self._lifecycle, self._verifying, self._planner, recovery)
        for i in range(case.count):
            self._start(prompt=i < case.prompts)

    def decide(self, step: int) -> StepPlan:
        """One plan: what is measured."""
        result = self._room.plan(step)
        assert result is not None
        return result

    def advance(self, step: int, result: StepPlan) -> None:
        """What the plan leads to."""
        self._planner.carried_out(result, draft_s=None, verify_s=None)
        by_id = {request.sequence_id: request for request in self._batch.running}
        for sequence_id, tokens, drafts in result.sequences:
            request = by_id[sequence_id]
            if request.decoding:
                self._decoded(request, drafts, step)
            else:
                request.verify.computed_length += tokens
            if not request.pending_token_count or request.max_length - len(request.token_ids) < 16:
                self._lifecycle.abort(request)
                self._start(prompt=not request.pending_token_count)
        self._drafting.begin_step(step + 1, self._batch.running)

    def _decoded(self, request: Request, drafts: int, step: int) -> None:
        truth, accepted = (request.sequence_id * 37 % 101) / 101, 0
        while accepted < drafts and self._source.random() < truth:
            accepted += 1
        self._requests.commit(request, [1] * (accepted + 1), time.monotonic())
        request.verify.computed_length = len(request.token_ids) - 1
        # After a step in which all drafts were accepted, the drafter lacks the last of them.
        request.draft.computed_length = len(request.token_ids) - 1 - (accepted == drafts)
        self._batch.acceptance.observe(request.row, drafted=drafts, accepted=accepted, step=step)

    def _start(self, *, prompt: bool) -> None:
        sequence_id, now_s = next(self._ids), time.monotonic()
        length = self._source.randrange(64, 4096) if prompt else self._source.randrange(1, 8000)
        request = Request(
            GenerationSpec(
                request_id=str(sequence_id),
                prompt_token_ids=(1,) * length,
                max_tokens=self._source.randrange(1000, 8000),
                max_draft_tokens=self._source.choice((8, 8, 8, 3, 1)),
                itl_slo_s=self._case.slo_s,
            ),
            sequence_id=sequence_id,
            output=OutputAssembler(
                _NoText(), stop_strings=(), stop_token_ids=(), min_tokens=0, max_tokens=8000
            ),
            channel=OutputChannel(1),
            accounting=Accounting(now_s),
            trace=RequestTrace(NoOpTracer(), INVALID_SPAN, WallClock()),
            deadline_s=None,
            target=self._info.target,
        )
        self._lifecycle.add(request)
        self._lifecycle.start(request, self._batch, now_s)
        self._verifying.attach(request)
        if not prompt:
            self._decoded(request, 0, 0)


class Run(Protocol):
    """Plans that follow from each other."""

    def decide(self, step: int) -> StepPlan:
        """One plan."""

    def advance(self, step: int, result: StepPlan) -> None:
        """What it leads to."""


def measure(run: Run, runs: int) -> tuple[list[float], list[float]]:
    """Percentiles of ``runs`` plans after 50 to warm up, microseconds: by the clock, and of the thread."""
    clock_us, thread_us = [], []
    for step in range(1, runs + 51):
        thread_ns, start_ns = time.thread_time_ns(), time.perf_counter_ns()
        result = run.decide(step)
        clock_us.append((time.perf_counter_ns() - start_ns) / 1000)
        thread_us.append((time.thread_time_ns() - thread_ns) / 1000)
        run.advance(step, result)
    return np.percentile(clock_us[50:], PERCENTILES).tolist(), np.percentile(
        thread_us[50:], CPU_PERCENTILES
    ).tolist()


def main() -> None:
    """Measures every kind of policy on plain and mixed batches."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2000)
    runs = parser.parse_args().runs
    table = LatencyTable(target=profile(1.0), draft=profile(0.1))
    results = []
    worst_us = 0.0
    gc.freeze()
    print("what          requests prompts    SLO      p10      p50      p90      p99 us  cpu p50      p99")
    for kind in KINDS:
        for count, prompts, slo_s in BATCHES:
            case = Case(kind=kind, count=count, prompts=prompts, slo_s=slo_s)
            for what, run in ((kind, PlanRun(case, table)), (f"{kind} room", RoomRun(case, table))):
                clock_us, thread_us = measure(run, runs)
                results.append([what, count, prompts, slo_s, *clock_us, *thread_us])
                worst_us = max(worst_us, clock_us[-1])
                times = (f"{us:8.0f}" for us in (*clock_us, *thread_us))
                print(f"{what:14}{count:8}{prompts:8}{slo_s or '-':>7} {' '.join(times)}")
    columns = [f"p{p}_us" for p in PERCENTILES] + [f"cpu_p{p}_us" for p in CPU_PERCENTILES]
    document = {
        "benchmark": "policy",
        "worst_p99_us": worst_us,
        "limit_us": LIMIT_US,
        "runs": runs,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "machine": platform.machine(),
        "columns": ["policy", "requests", "prompts", "slo_s", *columns],
        "rows": results,
    }
    print(json.dumps(document))


if __name__ == "__main__":
    main()
