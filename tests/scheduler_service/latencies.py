"""Latency tables that tests write down, with shapes like those of a CPU and of a GPU."""

from scheduler_service.latency_table import LatencyEntry, LatencyTable, ModelProfile

ROWS = (1, 4, 16, 64, 256, 1024)
CONTEXTS = (0, 256, 1024, 4096)


def profile(
    *,
    row_us: float,
    base_us: float = 0.0,
    free_rows: int = 0,
    attention_us: float = 0.01,
    overhead_us: float = 50.0,
) -> ModelProfile:
    """Costs ``base_us`` and then ``row_us`` for each row beyond ``free_rows``."""
    latencies = [LatencyEntry(op="overhead", rows=1, median_us=overhead_us)]
    for rows in ROWS:
        paid = base_us + row_us * max(rows - free_rows, 0)
        latencies.append(LatencyEntry(op="linear", n=64, k=64, rows=rows, median_us=paid * 0.9))
        latencies.append(LatencyEntry(op="head", n=1000, k=64, rows=rows, median_us=paid * 0.1))
        latencies += [
            LatencyEntry(op="attention", rows=rows, context=c, median_us=attention_us * rows * (1 + c / 64))
            for c in CONTEXTS
        ]
    return ModelProfile(
        device="cpu: test, 2 threads",
        versions=("torch 2.13.0",),
        revision="sha256:1",
        variant="w4",
        latencies=tuple(latencies),
    )


def memory_bound() -> LatencyTable:
    """A GPU with few sequences: up to 64 rows cost what one does; drafts cost a tenth."""
    return LatencyTable(
        target=profile(row_us=60, base_us=8000, free_rows=64),
        draft=profile(row_us=5, base_us=600, free_rows=64),
    )


def compute_bound(draft_share: float = 0.5) -> LatencyTable:
    """A CPU: each row costs the same; a draft costs a share of it."""
    return LatencyTable(
        target=profile(row_us=1000, base_us=500), draft=profile(row_us=1000 * draft_share, base_us=100)
    )
