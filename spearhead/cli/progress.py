"""What a command says on standard error while it works: progress bars and sentences."""

import sys
import time
from typing import TextIO

_WIDTH = 24


def tell(sentence: str) -> None:
    """Says something on a line of its own."""
    print(sentence, file=sys.stderr, flush=True)


class ProgressBar:
    """Counts up to ``total``; redraws on a terminal, prints every tenth of the way elsewhere.

    Args:
        label: What is counted.
        total: Where it ends; may be given later, to :meth:`move_to`.
        unit: Of the counts, such as "MiB".
        stream: Where it is drawn; standard error by default.
    """

    def __init__(self, label: str, total: int = 1, *, unit: str = "", stream: TextIO | None = None) -> None:
        self._label = label
        self._total = max(total, 1)
        self._unit = f" {unit}" if unit else ""
        self._stream = stream or sys.stderr
        self._live = self._stream.isatty()
        self._done = self._skipped = 0
        self._began_s = time.monotonic()

    def advance(self) -> None:
        """One more."""
        self.move_to(self._done + 1)

    def start_from(self, done: int) -> None:
        """So many were there before; they do not count in the rate."""
        self._skipped = done

    def move_to(self, done: int, total: int | None = None) -> None:
        """So many in all, of ``total``."""
        self._total = max(total or self._total, 1)
        before, self._done = self._done, min(self._total, done)
        if self._live:
            self._stream.write("\r" + self._line() + ("\n" if self._done == self._total > before else ""))
        elif self._done * 10 // self._total > before * 10 // self._total:
            self._stream.write(self._line() + "\n")
        self._stream.flush()

    def _line(self) -> str:
        elapsed_s = time.monotonic() - self._began_s
        rate = (self._done - self._skipped) / elapsed_s if elapsed_s > 0 else 0.0
        left_s = (self._total - self._done) / rate if rate > 0 else 0.0
        bar = "#" * (_WIDTH * self._done // self._total)
        return (
            f"{self._label:<24} [{bar:<{_WIDTH}}] {self._done}/{self._total}{self._unit}"
            f"  {rate:.1f}{self._unit}/s  {left_s:.0f} s left"
        )


class StageBars:
    """One progress bar a stage; a stage that was finished before shows none."""

    def __init__(self) -> None:
        self._bars: dict[str, ProgressBar] = {}
        self._done: dict[str, int] = {}

    def show(self, stage: str, done: int, total: int) -> None:
        """Moves the bar of a stage."""
        if done < self._done.get(stage, done + 1):  # the first sign, or the same stage once more
            if done == total:
                return
            self._bars[stage] = ProgressBar(stage, total)
            self._bars[stage].start_from(done)
        self._done[stage] = done
        self._bars[stage].move_to(done, total)
