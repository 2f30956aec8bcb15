"""A progress bar on standard error."""

import sys
import time
from typing import TextIO

_WIDTH = 30


class ProgressBar:
    """Counts up to ``total``; redraws on a terminal, prints every tenth of the way elsewhere."""

    def __init__(self, label: str, total: int, stream: TextIO | None = None) -> None:
        self._label = label
        self._total = total
        self._stream = stream or sys.stderr
        self._live = self._stream.isatty()
        self._done = 0
        self._began_s = time.monotonic()

    def advance(self, amount: int = 1) -> None:
        """Counts and redraws."""
        before = self._done
        self._done = min(self._total, self._done + amount)
        if self._live:
            self._stream.write("\r" + self._line() + ("\n" if self._done == self._total else ""))
        elif self._done * 10 // self._total > before * 10 // self._total:
            self._stream.write(self._line() + "\n")
        self._stream.flush()

    def _line(self) -> str:
        elapsed_s = time.monotonic() - self._began_s
        left_s = elapsed_s / self._done * (self._total - self._done) if self._done else 0.0
        bar = "#" * (_WIDTH * self._done // self._total)
        return f"{self._label:<24} [{bar:<{_WIDTH}}] {self._done}/{self._total}  {left_s:4.0f} s left"
