"""Ranks that this process started."""

import os
import subprocess
from collections.abc import Mapping, Sequence

from spearhead.errors import RankFailure


class Children:
    """Owns the processes of further ranks on this machine. They end by themselves soon after the leader does.

    Args:
        command: Starts one rank; its environment says which.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._command = list(command)
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, rank: int, environment: Mapping[str, str]) -> None:
        """Starts a rank; its output goes where this process's goes."""
        self._processes[rank] = subprocess.Popen(
            self._command, env={**os.environ, **environment}, stdin=subprocess.DEVNULL
        )

    def check(self) -> None:
        """Sees to it that all of them run.

        Raises:
            RankFailure: One has ended.
        """
        for rank, process in self._processes.items():
            code = process.poll()
            if code is not None:
                raise RankFailure(f"rank {rank} ended at start-up with code {code}; its own message says why")

    def kill(self) -> None:
        """Ends them at once, for a process that cannot wait: one may hang, or still look for the leader."""
        for process in list(self._processes.values()):  # one may be added meanwhile
            process.kill()

    def wait(self, timeout_s: float) -> None:
        """Gives each so many seconds to end, then kills it."""
        for process in self._processes.values():
            try:
                process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
