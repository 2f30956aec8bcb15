"""Runs benchmarks as processes of their own: one that crashes or hangs takes no other with it."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernels.bench_all.jobs import Job

Clock = Callable[[], float]
_GRACE_S = 10.0
"""From an interrupt to the end: time to print what there is."""
_LEAST_S = 15.0
"""A process that gets less measures nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a job ended.

    Attributes:
        name: Of the job.
        state: ``done``, ``cut`` at its deadline, ``failed``, or ``skipped`` for want of time.
        seconds: That it took.
        document: Its last line, if that was JSON.
    """

    name: str
    state: str
    seconds: float
    document: dict[str, Any] | None


class Runner:
    """Starts jobs; writes what each prints to ``NAME.txt`` and its last line to ``NAME.json``.

    Args:
        folder: Where files go; exists.
        deadline_s: On the clock: when everything must have ended.
        clock: Seconds that only rise.
    """

    def __init__(self, folder: Path, deadline_s: float, clock: Clock = time.monotonic) -> None:
        self._folder, self._deadline_s, self._clock = folder, deadline_s, clock

    def one_by_one(self, jobs: Sequence[Job], report: Callable[[Outcome], None]) -> list[Outcome]:
        """Each job alone, until the time is over; the one that is running then is interrupted."""
        outcomes = []
        for job in jobs:
            outcomes.append(self._run(job))
            report(outcomes[-1])
        return outcomes

    def together(self, jobs: Sequence[Job], until_s: float) -> list[Outcome]:
        """All jobs at once, until a time on the clock."""
        started = self._clock()
        running = [self._start(job) for job in jobs]
        late = self._end(running, until_s)
        return [
            self._outcome(job, process, started, cut=process in late)
            for job, process in zip(jobs, running, strict=True)
        ]

    def _run(self, job: Job) -> Outcome:
        started = self._clock()
        if self._deadline_s - started < _LEAST_S + _GRACE_S:
            return Outcome(name=job.name, state="skipped", seconds=0.0, document=None)
        process = self._start(job)
        late = self._end([process], self._deadline_s - _GRACE_S)
        return self._outcome(job, process, started, cut=bool(late))

    def _start(self, job: Job) -> subprocess.Popen[str]:
        with self._text(job).open("w", encoding="utf-8") as output:
            return subprocess.Popen(
                [sys.executable, "-m", job.module, *job.arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
            )

    def _end(self, processes: Sequence[subprocess.Popen[str]], until_s: float) -> list[subprocess.Popen[str]]:
        """Waits for all; interrupts, and in the end kills, those that still run then, and returns them."""
        late = [process for process in processes if not _ended(process, until_s - self._clock())]
        for process in late:
            process.send_signal(signal.SIGINT)
        last = self._clock() + _GRACE_S
        for process in late:
            if not _ended(process, last - self._clock()):
                process.kill()
                process.wait()
        return late

    def _outcome(self, job: Job, process: subprocess.Popen[str], started: float, *, cut: bool) -> Outcome:
        document = last_document(self._text(job).read_text(encoding="utf-8", errors="replace"))
        if document is not None:
            path = self._folder / f"{job.name}.json"
            path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        state = "cut" if cut else "done" if process.returncode == 0 else "failed"
        return Outcome(name=job.name, state=state, seconds=self._clock() - started, document=document)

    def _text(self, job: Job) -> Path:
        return self._folder / f"{job.name}.txt"


def last_document(text: str) -> dict[str, Any] | None:
    """The last line, if it is a JSON object."""
    lines = text.strip().splitlines()
    try:
        found = json.loads(lines[-1]) if lines else None
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _ended(process: subprocess.Popen[str], seconds: float) -> bool:
    try:
        process.wait(max(seconds, 0.0))
    except subprocess.TimeoutExpired:
        return False
    return True
