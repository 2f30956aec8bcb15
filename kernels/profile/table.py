"""The latency table: every kernel's time, and what of it the scheduler adds up.

One JSON file serves both. ``kernels`` lists each measured kernel with all that its time depends on;
``target`` is the scheduler's view of it: format 1 of its table, as ``spearhead profile`` writes it::

    {"format": 1,
     "target": {"device": "cuda:0: NVIDIA H200, bfloat16", "versions": ["torch 2.11.0"],
                "revision": "sha256:…", "variant": "w4+ec",
                "latencies": [{"op": "linear", "n": 6144, "k": 4096, "rank": 48, "rows": 1, "context": 0,
                               "calls_per_forward": 32, "median_us": 8.1}, …]},
     "draft": null,
     "measured": {"gpu": "NVIDIA H200", "driver": "…", "cuda": "…", "torch": "…", "triton": "…", …},
     "kernels": [{"op": "w4a16", "name": "qkv", "n": 6144, "k": 4096, "group": 128, "rank": 48, "rows": 1,
                  "context": 0, "calls_per_forward": 32, "median_us": 8.1, "p10_us": 8.0, "p90_us": 8.3}, …]}
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

FORMAT = 1
Variant = Literal["w4", "w4+ec"]

_SCHEDULER_OPS = {
    "w4a16": "linear",
    "linear": "head",
    "sample": "head",
    "paged_attention": "attention",
    "rms_norm": "overhead",
    "silu_mul": "overhead",
    "rope_and_cache": "overhead",
    "codes": "overhead",
}
"""How the scheduler counts a kernel: a curve over rows, over sampled rows, or over rows and context."""

_SHARED_OPS = ("linear", "sample", "paged_attention", "rope_and_cache")
"""Kernels that compensators do not change: measured once, part of both variants."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTime:
    """One kernel at one size.

    Attributes:
        op: Folder of the kernel, or ``codes`` for the kernel that only computes codes.
        name: Which of the model's uses of it.
        n: Output features, 0 where that means nothing.
        k: Input features, likewise.
        group: Group size, 0 = per channel or not quantised.
        rank: Codes a row that the kernel adds or computes, 0 = none.
        rows: Rows of the step; for attention, new rows of one sequence.
        context: Tokens of a sequence before its new rows (attention).
        calls_per_forward: Times that one forward pass runs it.
        median_us: Of one call; of attention, what one more sequence adds.
        p10_us: A tenth of the replays took less.
        p90_us: Nine tenths took less.
    """

    op: str
    name: str
    n: int = 0
    k: int = 0
    group: int = 0
    rank: int = 0
    rows: int
    context: int = 0
    calls_per_forward: int
    median_us: float
    p10_us: float
    p90_us: float


def latencies(times: Sequence[KernelTime], variant: Variant) -> list[dict[str, str | int | float]]:
    """The scheduler's entries for one variant.

    Args:
        times: Each kernel with compensators and without.
        variant: ``w4+ec`` takes compensated products and the kernels in front that compute codes.

    Raises:
        ValueError: A kernel is not known here.
    """
    return [
        {
            "op": _scheduler_op(time.op),
            "n": time.n,
            "k": time.k,
            "rank": time.rank,
            "rows": time.rows,
            "context": time.context,
            "calls_per_forward": time.calls_per_forward,
            "median_us": time.median_us,
        }
        for time in times
        if time.op in _SHARED_OPS or (time.rank > 0) == (variant == "w4+ec")
    ]


def document(
    times: Sequence[KernelTime],
    measured: Mapping[str, str],
    *,
    device: str,
    dtype: str,
    variant: Variant,
    revision: str,
) -> dict[str, object]:
    """The whole file.

    Args:
        times: All measurements.
        measured: GPU and versions, of :func:`kernels.tuning.timing.facts`.
        device: As a worker names it: ``cuda:0``.
        dtype: Compute type.
        variant: What the scheduler's view describes.
        revision: Of the model, as its worker reports it; the scheduler refuses another one.
    """
    return {
        "format": FORMAT,
        "target": {
            "device": f"{device}: {measured['gpu']}, {dtype}",
            "versions": [f"torch {measured['torch']}"],
            "revision": revision,
            "variant": variant,
            "latencies": latencies(times, variant),
        },
        "draft": None,
        "measured": dict(measured),
        "kernels": [asdict(time) for time in times],
    }


def write(path: Path, content: Mapping[str, object]) -> None:
    """Writes a file, whole or not at all."""
    unfinished = path.with_name(f".{path.name}.part")
    unfinished.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    unfinished.replace(path)


def _scheduler_op(op: str) -> str:
    if op not in _SCHEDULER_OPS:
        raise ValueError(f"no kernel {op!r} in a latency table; known: {', '.join(_SCHEDULER_OPS)}")
    return _SCHEDULER_OPS[op]
