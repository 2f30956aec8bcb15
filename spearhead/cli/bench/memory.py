"""Memory of the served processes, sampled while a benchmark runs."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

import psutil

_INTERVAL_S = 0.5
_MIB = 1 << 20


@dataclass(slots=True)
class MemoryWatch:
    """Samples the resident memory of processes; an async context manager.

    Attributes:
        pids: Process id by name.
        samples: Resident bytes by name, in the order in which they were taken.
    """

    pids: Mapping[str, int]
    samples: dict[str, list[int]] = field(default_factory=dict)
    _task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "MemoryWatch":
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._sample()

    def report(self) -> dict[str, dict[str, float]]:
        """MiB at the start, at most and at the end, and growth over the second half, by name."""
        return {name: memory_report(samples) for name, samples in self.samples.items() if samples}

    async def _run(self) -> None:
        while True:
            self._sample()
            await asyncio.sleep(_INTERVAL_S)

    def _sample(self) -> None:
        for name, pid in self.pids.items():
            if psutil.pid_exists(pid):
                self.samples.setdefault(name, []).append(psutil.Process(pid).memory_info().rss)


def memory_report(samples: list[int]) -> dict[str, float]:
    """MiB at the start, at most and at the end, and growth over the second half of the samples."""
    half = samples[len(samples) // 2]
    return {
        "start_mib": round(samples[0] / _MIB, 1),
        "peak_mib": round(max(samples) / _MIB, 1),
        "end_mib": round(samples[-1] / _MIB, 1),
        "growth_second_half_mib": round((samples[-1] - half) / _MIB, 1),
    }
