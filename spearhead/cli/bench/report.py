"""The table of a benchmark, for people; pure."""

from collections.abc import Mapping

from spearhead.cli.bench.statistics import Percentiles, Summary
from spearhead.cli.tables import table


def run_table(
    runs: Mapping[str, Summary], peer: Mapping[str, object] | None, memory: Mapping[str, Mapping[str, float]]
) -> str:
    """One row a run, then the overhead, the baseline and the memory.

    Args:
        runs: By label.
        peer: What the baseline printed, or ``None``.
        memory: MiB by process.
    """
    head = [
        "",
        "tokens/s",
        "TTFT p50/p99 ms",
        "ITL p50/p99 ms",
        "gap max",
        "E2E p50/p99 ms",
        "accepted",
        "ok",
    ]
    rows = [head] + [_row(label, summary) for label, summary in runs.items()]
    parts = [table(rows), *_failures(runs)]
    parts.append(_overhead(runs))
    if peer is not None:
        rates = peer["tokens_per_s"]
        assert isinstance(rates, Mapping)
        parts.append(
            "transformers' generate, same weights and dtype: "
            + ", ".join(f"{rate} tokens/s with {count} in a batch" for count, rate in rates.items())
        )
    if memory:
        parts.append(_memory(memory))
    return "\n\n".join(parts)


def _row(label: str, summary: Summary) -> list[str]:
    return [
        label,
        f"{summary.tokens_per_s:.1f}",
        _pair(summary.ttft_ms),
        _pair(summary.itl_ms),
        f"{summary.gap_ms.maximum:.0f}",
        _pair(summary.e2e_ms),
        "–" if summary.acceptance is None else f"{summary.acceptance:.0%}",
        f"{summary.completed + summary.cancelled}/{summary.requests}",
    ]


def _failures(runs: Mapping[str, Summary]) -> list[str]:
    return [
        f"{label}: {summary.failed} failed: {'; '.join(summary.errors)}"
        for label, summary in runs.items()
        if summary.failed
    ]


def _overhead(runs: Mapping[str, Summary]) -> str:
    rows = [["scheduler + gRPC + serialisation a step, ms", "p50", "p90", "p99"]]
    for label, summary in runs.items():
        cost = summary.overhead_ms_per_step
        rows.append([f"  {label}", f"{cost.p50:.2f}", f"{cost.p90:.2f}", f"{cost.p99:.2f}"])
    return table(rows)


def _memory(memory: Mapping[str, Mapping[str, float]]) -> str:
    rows = [["resident memory, MiB", "start", "peak", "end", "growth in 2nd half"]]
    for name, report in memory.items():
        keys = ("start_mib", "peak_mib", "end_mib", "growth_second_half_mib")
        rows.append([f"  {name}", *(f"{report[key]:.1f}" for key in keys)])
    return table(rows)


def _pair(percentiles: Percentiles) -> str:
    return f"{percentiles.p50:.1f}/{percentiles.p99:.1f}"
