"""One child process: its output, its last lines, its end."""

import asyncio
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

_TAIL_LINES = 20
# Run as a file: as a module it would first import this whole package.
_TETHER = Path(__file__).with_name("tether.py")


class Child:
    """A running process whose output goes line by line to ``on_line``; made by :meth:`start`."""

    def __init__(
        self, name: str, process: asyncio.subprocess.Process, on_line: Callable[[str, str], None]
    ) -> None:
        self.name = name
        self.tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._process = process
        self._on_line = on_line
        self._reader = asyncio.create_task(self._read())

    @classmethod
    async def start(
        cls,
        name: str,
        argv: Sequence[str],
        on_line: Callable[[str, str], None],
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> "Child":
        """Starts the process in a session of its own, so that Ctrl-C reaches only the parent.

        It is tied to the parent's life all the same.

        Args:
            name: For people.
            argv: Command line.
            on_line: Called with the name and each line of standard output and standard error.
            environment: Variables that this process's own environment does not set.
        """
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", str(_TETHER), str(os.getpid())),
            *argv,
            env={**environment, **os.environ},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        return cls(name, process, on_line)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Exit code; ``None`` while it runs."""
        return self._process.returncode

    async def wait(self) -> int:
        """The exit code, once the process has ended and its output was read."""
        code = await self._process.wait()
        await self._reader
        return code

    async def stop(self, grace_s: float) -> int:
        """SIGTERM; SIGKILL when it has not ended after ``grace_s``. Returns the exit code."""
        self._signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(grace_s):
                return await self.wait()
        except TimeoutError:
            self.kill()
            return await self.wait()

    def kill(self) -> None:
        """SIGKILL."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self._process.returncode is None:
            self._process.send_signal(number)

    async def _read(self) -> None:
        assert self._process.stdout is not None
        rest = b""
        while block := await self._process.stdout.read(1 << 16):
            *lines, rest = (rest + block).split(b"\n")
            for line in lines:
                self._emit(line)
        if rest:
            self._emit(rest)

    def _emit(self, line: bytes) -> None:
        text = line.decode("utf-8", "replace").rstrip()
        self.tail.append(text)
        self._on_line(self.name, text)
