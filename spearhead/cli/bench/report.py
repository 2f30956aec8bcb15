"""The table of a benchmark, for people; pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spearhead.cli.bench.statistics import Percentiles, Summary
from spearhead.cli.tables import table


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonLine:
    """Both sides at one number of streams: equal prompts, lengths, weights, type; greedy, no speculation.

    Attributes:
        streams: At once; one batch for the baseline.
        tokens_per_s: Ours, the best of some repeats.
        transformers_tokens_per_s: The baseline's, likewise.
    """

    streams: int
    tokens_per_s: float
    transformers_tokens_per_s: float


def compare(ours: Mapping[int, float], peer: Mapping[int, float]) -> list[ComparisonLine]:
    """Pairs both sides' tokens a second, each by number of streams."""
    return [
        ComparisonLine(streams=streams, tokens_per_s=rate, transformers_tokens_per_s=peer[streams])
        for streams, rate in ours.items()
    ]


def run_table(
    runs: Mapping[str, Summary],
    comparison: Sequence[ComparisonLine],
    memory: Mapping[str, Mapping[str, float]],
) -> str:
    """One row a run, then the overhead, the baseline and the memory.

    Args:
        runs: By label.
        comparison: With the baseline; may be empty.
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
    if comparison:
        parts.append(_comparison(comparison))
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


def _comparison(lines: Sequence[ComparisonLine]) -> str:
    rows = [["tokens/s beside transformers' generate", "ours", "transformers", "ratio"]]
    for line in lines:
        ratio = line.tokens_per_s / line.transformers_tokens_per_s
        rows.append(
            [
                f"  {line.streams} at once",
                f"{line.tokens_per_s:.1f}",
                f"{line.transformers_tokens_per_s:.1f}",
                f"{ratio:.2f}",
            ]
        )
    return table(rows)


def _memory(memory: Mapping[str, Mapping[str, float]]) -> str:
    rows = [["resident memory, MiB", "start", "peak", "end", "growth in 2nd half"]]
    for name, report in memory.items():
        keys = ("start_mib", "peak_mib", "end_mib", "growth_second_half_mib")
        rows.append([f"  {name}", *(f"{report[key]:.1f}" for key in keys)])
    return table(rows)


def _pair(percentiles: Percentiles) -> str:
    return f"{percentiles.p50:.1f}/{percentiles.p99:.1f}"
