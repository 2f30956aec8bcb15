"""How long the device computed: by a GPU's own clock, or in processor time."""

import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch

PROCESS_TIME = "spearhead.cpu.process_time_ns"
"""Processor time of all threads of the process; with several threads more than the time that passed."""

GPU_TIME = "spearhead.gpu.time_ns"
"""From the first to the last of the work on the GPU's stream, by the GPU's clock."""


class DeviceTimer(Protocol):
    """Measures one piece of work after the other, on the thread that gives it to the device."""

    def start(self) -> None:
        """The work begins."""

    def stop(self) -> Mapping[str, int]:
        """The work was given to the device; waits for its end.

        Returns:
            Span attribute to nanoseconds.
        """


class ProcessTimer:
    """Processor time."""

    def __init__(self) -> None:
        self._start_ns = 0

    def start(self) -> None:
        """The work begins."""
        self._start_ns = time.process_time_ns()

    def stop(self) -> Mapping[str, int]:
        """The processor time since :meth:`start`."""
        return {PROCESS_TIME: time.process_time_ns() - self._start_ns}


class Event(Protocol):
    """A mark on a device's stream, as ``torch.cuda.Event`` is one."""

    def record(self) -> None:
        """Puts the mark behind what was given to the stream so far."""

    def synchronize(self) -> None:
        """Waits until the stream has reached the mark."""

    def elapsed_time(self, end: Any, /) -> float:
        """Milliseconds from this mark to ``end``, one of the same kind."""


class EventTimer:
    """Time between two marks on the device's stream.

    Args:
        make_event: Makes a mark that keeps the time.
    """

    def __init__(self, make_event: Callable[[], Event]) -> None:
        self._begin, self._end = make_event(), make_event()

    def start(self) -> None:
        """The work begins."""
        self._begin.record()

    def stop(self) -> Mapping[str, int]:
        """The device's time since :meth:`start`; waits for the device."""
        self._end.record()
        self._end.synchronize()
        return {GPU_TIME: round(self._begin.elapsed_time(self._end) * 1e6)}


def device_timer() -> DeviceTimer:
    """The timer for what this process computes on: a GPU that it has put something on, else the processor."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return EventTimer(lambda: torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call]
    return ProcessTimer()
