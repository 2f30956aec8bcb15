"""Times GPU work by graph replays over weights that rotate past the L2; says what a number depends on."""

import platform
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

ROTATED_BYTES = 300_000_000
"""Distinct weights in one rotation: five times the L2 of an H200."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Time of one call, microseconds, over graph replays.

    Attributes:
        median_us: Half of the replays took less.
        p10_us: A tenth took less.
        p90_us: Nine tenths took less.
    """

    median_us: float
    p10_us: float
    p90_us: float


def rotation(nbytes: int) -> int:
    """How many copies of a weight make one rotation."""
    return max(2, min(64, -(-ROTATED_BYTES // nbytes)))


def time_calls(calls: Sequence[Callable[[], object]], *, replays: int = 50) -> Timing:
    """Times a sequence of calls as one CUDA graph; each call takes another copy of the weights.

    Args:
        calls: Run in this order, at least twice a replay; they allocate nothing that must outlive them.
        replays: Timed replays, after ten that are not.
    """
    repeats = max(1, -(-16 // len(calls)))
    _on_side_stream(calls)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            for call in calls:
                call()
    events = [[_event() for _ in range(2)] for _ in range(replays)]
    for _ in range(10):
        graph.replay()
    for start, end in events:
        start.record()
        graph.replay()
        end.record()
    torch.cuda.synchronize()
    scale = 1000 / (repeats * len(calls))
    times = sorted(start.elapsed_time(end) * scale for start, end in events)
    at = partial(_quantile, times)
    return Timing(median_us=at(0.5), p10_us=at(0.1), p90_us=at(0.9))


def copy_bytes_s() -> float:
    """Bandwidth of a large copy on the device, bytes read and written a second."""
    source = torch.randn(1 << 28, device="cuda")
    target = torch.empty_like(source)
    timing = time_calls([partial(target.copy_, source)], replays=50)
    return 2 * source.nbytes / timing.median_us * 1e6


def facts() -> dict[str, str]:
    """What a measurement depends on: GPU, driver, versions, commit."""
    import triton

    return {
        "gpu": torch.cuda.get_device_name(),
        "driver": _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        "cuda": str(torch.version.cuda),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "python": platform.python_version(),
        "commit": _output("git", "rev-parse", "--short", "HEAD"),
    }


def _on_side_stream(calls: Sequence[Callable[[], object]]) -> None:
    """Runs each call once where capture will run: compilation and first allocations stay out of the graph."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[round(share * (len(ordered) - 1))]


def _output(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.strip().splitlines()[0] if done.stdout.strip() else "unknown"
