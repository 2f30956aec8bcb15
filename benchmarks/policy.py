"""How long one plan takes: ``python -m benchmarks.policy``.

The claim: below 200 us at the 99th percentile with 256 running requests. Prints a table for people and,
as the last line, the same as one JSON document.
"""

import argparse
import gc
import json
import platform
import random
import time

import numpy as np

from scheduler_service.latency_table import LatencyEntry, LatencyTable, ModelProfile
from scheduler_service.policy import BatchView, PlanMemory, PolicyConfig, SequenceView, plan
from scheduler_service.step_plan import PolicyKind

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


def measure(batch: BatchView, table: LatencyTable, config: PolicyConfig, runs: int) -> tuple[float, ...]:
    """Percentiles 10, 50, 90 and 99 of ``runs`` plans after 50 to warm up, microseconds."""
    memory = PlanMemory()
    times = []
    for i in range(runs + 50):
        start = time.perf_counter_ns()
        memory = plan(batch, table, config, memory=memory).memory
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
    print("policy  requests prompts    SLO      p10      p50      p90      p99 us")
    for kind in KINDS:
        for count, prompts, slo_s in BATCHES:
            batch = view(count, prompts=prompts, seed=count, slo_s=slo_s)
            times = measure(batch, table, PolicyConfig(kind=kind), runs)
            results.append([kind, count, prompts, slo_s, *times])
            worst_us = max(worst_us, times[-1])
            print(f"{kind:8}{count:8}{prompts:8}{slo_s or '-':>7}", *(f"{us:8.0f}" for us in times))
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
