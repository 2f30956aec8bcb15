"""Times GPU work by graph replays over weights that rotate past the L2; says what a number depends on."""

import platform
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from kernels.graph_capture import nothing_collected

ROTATED_BYTES = 300_000_000
"""Distinct weights in one rotation: five times the L2 of an H200."""
_LONG_US = 2000


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
    # A graph of few short calls is nothing but its own launch; long calls need no company.
    repeats = max(1, -(-16 // len(calls))) if _on_side_stream(calls) < _LONG_US else 1
    graph = torch.cuda.CUDAGraph()
    with nothing_collected(), torch.cuda.graph(graph):
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
    """Bandwidth of a kernel that reads and writes a large tensor, bytes read and written a second.

    Not of a copy, which in a graph is no kernel, and slower.
    """
    source = torch.randn(1 << 28, device="cuda")
    target = torch.empty_like(source)
    timing = time_calls([partial(torch.neg, source, out=target)] * 2, replays=50)
    return 2 * source.nbytes / timing.median_us * 1e6


def command() -> str:
    """How this process was started, to be repeated."""
    main = sys.modules["__main__"].__spec__
    program = ["python", "-m", main.name.removesuffix(".__main__")] if main else ["python", sys.argv[0]]
    return shlex.join([*program, *sys.argv[1:]])


def facts() -> dict[str, str]:
    """What a measurement depends on: GPU, driver, versions, commit."""
    import triton

    return {
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "driver": _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        "cuda": str(torch.version.cuda),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "python": platform.python_version(),
        "commit": _output("git", "rev-parse", "--short", "HEAD"),
    }


def _on_side_stream(calls: Sequence[Callable[[], object]]) -> float:
    """Runs each call twice where capture will run: compilation and first allocations stay out of the graph.

    Returns:
        Rough microseconds of all calls together, the second time.
    """
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    start, end = _event(), _event()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for again in (False, True):
            for call in calls:
                call()
            if not again:
                start.record()
        end.record()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) * 1000


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
