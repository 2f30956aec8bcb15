"""Notices when the whole process stood still: stopped, swapped out, or starved of a core or of Python's lock.

No span can be written while a process stands still, and afterwards the time looks like the network's or a
kernel's. A thread that sleeps briefly and compares sees it, and says so in a span of its own.
"""

import threading
import time

from opentelemetry.trace import Tracer

from spearhead.telemetry.traces import ALWAYS_RECORDED, record_span

STALL_SPAN = "process.stall"
TICK_S = 0.02
LEAST_STALL_S = 0.025
"""Below this, a busy machine's scheduling would fill the traces."""


class StallWatch:
    """The thread; it ends with :meth:`close`, or with the process.

    Args:
        tracer: Where stalls go.
    """

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="stall-watch")
        self._thread.start()

    def close(self) -> None:
        """Ends the thread within a tick."""
        self._closed.set()
        self._thread.join(1.0)

    def _run(self) -> None:
        before_ns, cpu_ns = time.monotonic_ns(), time.process_time_ns()
        while not self._closed.wait(TICK_S):
            now_ns, now_cpu_ns = time.monotonic_ns(), time.process_time_ns()
            record_stall(self._tracer, slept_ns=now_ns - before_ns, computed_ns=now_cpu_ns - cpu_ns)
            before_ns, cpu_ns = time.monotonic_ns(), time.process_time_ns()


def record_stall(tracer: Tracer, *, slept_ns: int, computed_ns: int) -> None:
    """Records a sleep that ended just now, if it was far too long.

    Args:
        tracer: Where to record.
        slept_ns: How long it took; ``TICK_S`` was asked for.
        computed_ns: CPU time that the process used meanwhile, in all threads; near the length of the stall,
            it did not stand still but held Python's lock.
    """
    stall_ns = slept_ns - int(TICK_S * 1e9)
    if stall_ns < LEAST_STALL_S * 1e9:
        return
    now_ns = time.time_ns()
    record_span(
        tracer,
        STALL_SPAN,
        start_ns=now_ns - stall_ns,
        end_ns=now_ns,
        attributes={ALWAYS_RECORDED: True, "spearhead.stall.cpu_ns": computed_ns},
    )
