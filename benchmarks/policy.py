"""How long one plan takes: ``python -m benchmarks.policy``.

The claim: below 200 us at the 99th percentile with 256 running requests. ``room`` is the whole decision as
the engine takes it, collecting the requests' state included. Prints a table for people and, as the last line,
the same as one JSON document.
"""

import argparse
import gc
import json
import platform
import random
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from opentelemetry.trace import INVALID_SPAN, NoOpTracer
from prometheus_client import CollectorRegistry

from scheduler_service.acceptance import AcceptanceConfig
from scheduler_service.accounting import Accounting
from scheduler_service.batch import Batch
from scheduler_service.config import ModelSection, SchedulerConfig
from scheduler_service.delivery import OutputChannel
from scheduler_service.draft_patience import DraftPatience
from scheduler_service.drafting import Drafting
from scheduler_service.latency_table import LatencyEntry, LatencyTable, ModelProfile
from scheduler_service.lifecycle import Lifecycle
from scheduler_service.links import make_links
from scheduler_service.metrics import SchedulerMetrics
from scheduler_service.output import OutputAssembler
from scheduler_service.peers import DraftInfo, VerifyInfo
from scheduler_service.planner import Planner
from scheduler_service.policy import BatchView, PlanMemory, PolicyConfig, SequenceView, plan
from scheduler_service.recovery import Recovery
from scheduler_service.request import Request
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


def view(count: int, *, prompts: int, seed: int, slo_s: float | None) -> BatchView:
    """A batch of ``count`` sequences, ``prompts`` of them still in their prompt, as unlike as they can be."""
    source = random.Random(seed)
    sequences = tuple(
        SequenceView(
            sequence_id=i,
            pending_token_count=source.randrange(64, 4096) if i < prompts else 1,
            context_length=source.randrange(0, 8000),
            decoding=i >= prompts,
            max_draft_tokens=source.choice((8, 8, 8, 3, 1)),
            draft_lag=source.randrange(2),
            acceptance=source.random(),
            itl_slo_s=slo_s,
            waited_s=source.random() * 5,
            since_last_token_s=0.0005,
        )
        for i in range(count)
    )
    return BatchView(
        sequences=sequences, draft_available=True, page_size=16, free_page_count=20000, max_step_tokens=2048
    )


def measure_plan(batch: BatchView, table: LatencyTable, config: PolicyConfig, runs: int) -> tuple[float, ...]:
    """Percentiles of the pure function."""
    memory = PlanMemory()

    def decide(step: int) -> None:
        nonlocal memory
        memory = plan(batch, table, config, memory=memory).memory

    return measure(decide, runs)


class _NoText:
    def push(self, ids: object) -> str:
        return ""

    def flush(self) -> str:
        return ""


def room(batch_view: BatchView, table: LatencyTable, config: PolicyConfig) -> Room:
    """The engine's own planning over requests like those of ``batch_view``, without workers."""
    metrics = SchedulerMetrics(CollectorRegistry())
    batch = Batch()
    info = types_pb2.ModelInfo(
        revision="", context_length=1 << 20, kv_page_size=batch_view.page_size, kv_page_count=1 << 20
    )
    nowhere = TargetConfig(address="unix:/nowhere")
    scheduler = SchedulerConfig(model=ModelSection(tokenizer=Path()), verify=nowhere, draft=nowhere)
    verify_link, draft_link = make_links(scheduler, "", None, metrics, on_change=lambda: None)
    assert draft_link is not None
    verify_link.info = VerifyInfo(model=info, variant="")
    draft_link.info = DraftInfo(model=info, max_draft_tokens=8)
    verify_link.state = draft_link.state = LinkState.READY
    verify_link.session = draft_link.session = 1
    verifying = Verifying(verify_link, batch.verify_releases, metrics, timeout_s=1.0)
    drafting = Drafting(
        draft_link, batch.draft_releases, metrics, vocab_size=1 << 20, patience=DraftPatience(1.0, 3)
    )
    planner = Planner(config, table, AcceptanceConfig(), drafting, max_draft_tokens=8, max_step_tokens=2048)
    lifecycle = Lifecycle(batch, drafting, planner, metrics, aging_s=1.0)
    recovery = Recovery(batch, lifecycle, metrics, max_failed_steps=1)
    verifying.renew()
    for sequence in batch_view.sequences:
        request = _request(sequence, verify_link.info, now_s=time.monotonic())
        lifecycle.add(request)
        lifecycle.start(request, time.monotonic())
        verifying.attach(request)
        drafting.lag(request)
        request.verify.computed_length = sequence.context_length
        request.draft.computed_length = sequence.context_length - sequence.draft_lag
        planner.acceptance.observe(sequence.sequence_id, drafted=8, accepted=sequence.sequence_id % 9, step=0)
    return Room(
        batch, lifecycle, verifying, planner, recovery, max_running_requests=len(batch_view.sequences)
    )


def _request(sequence: SequenceView, info: VerifyInfo, *, now_s: float) -> Request:
    length = sequence.context_length + sequence.pending_token_count
    request = Request(
        GenerationSpec(
            request_id=str(sequence.sequence_id),
            prompt_token_ids=(1,) * (max(length - 1, 1) if sequence.decoding else length),
            max_tokens=4096,
            max_draft_tokens=sequence.max_draft_tokens,
            itl_slo_s=sequence.itl_slo_s,
        ),
        sequence_id=sequence.sequence_id,
        output=OutputAssembler(_NoText(), stop_strings=(), stop_token_ids=(), min_tokens=0, max_tokens=4096),
        channel=OutputChannel(1),
        accounting=Accounting(now_s),
        trace=RequestTrace(NoOpTracer(), INVALID_SPAN, WallClock()),
        deadline_s=None,
        target=info.target,
    )
    if sequence.decoding:
        request.token_ids = [1] * length
        request.accounting.last_token_s = now_s
    return request


def measure(decide: Callable[[int], object], runs: int) -> tuple[float, ...]:
    """Percentiles 10, 50, 90 and 99 of ``runs`` calls after 50 to warm up, microseconds."""
    times = []
    for i in range(runs + 50):
        start = time.perf_counter_ns()
        decide(i + 1)
        if i >= 50:
            times.append((time.perf_counter_ns() - start) / 1000)
    return tuple(np.percentile(times, PERCENTILES).tolist())


def main() -> None:
    """Measures every kind of policy on plain and mixed batches."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2000)
    runs = parser.parse_args().runs
    table = LatencyTable(target=profile(1.0), draft=profile(0.1))
    results = []
    worst_us = 0.0
    gc.freeze()
    print("what          requests prompts    SLO      p10      p50      p90      p99 us")
    for kind in KINDS:
        for count, prompts, slo_s in BATCHES:
            batch = view(count, prompts=prompts, seed=count, slo_s=slo_s)
            config = PolicyConfig(kind=kind)
            for what, times in (
                (kind, measure_plan(batch, table, config, runs)),
                (f"{kind} room", measure(room(batch, table, config).plan, runs)),
            ):
                results.append([what, count, prompts, slo_s, *times])
                worst_us = max(worst_us, times[-1])
                print(f"{what:14}{count:8}{prompts:8}{slo_s or '-':>7}", *(f"{us:8.0f}" for us in times))
    document = {
        "benchmark": "policy",
        "worst_p99_us": worst_us,
        "limit_us": LIMIT_US,
        "runs": runs,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "machine": platform.machine(),
        "columns": ["policy", "requests", "prompts", "slo_s", *(f"p{p}_us" for p in PERCENTILES)],
        "rows": results,
    }
    print(json.dumps(document))


if __name__ == "__main__":
    main()
