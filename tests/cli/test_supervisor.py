import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from spearhead.cli.stack import ServiceCommand, StackOptions
from spearhead.cli.supervisor import ChildFailure, Supervisor

PROCESS = Path(__file__).with_name("health_process.py")


class Stack:
    """A supervisor of small processes, with what it reported."""

    def __init__(self, **modes: str) -> None:
        self.lines: list[tuple[str, str]] = []
        self.folder = Path()
        self._awaited: dict[tuple[str, str], asyncio.Event] = {}
        self._modes = modes
        self.supervisor = Supervisor(
            StackOptions(model="m"),
            log=self._report,
            progress=self._report,
            plan=self._plan,
        )

    def _report(self, name: str, text: str) -> None:
        self.lines.append((name, text))
        if (name, text) in self._awaited:
            self._awaited[name, text].set()

    async def saw(self, name: str, text: str) -> None:
        """Returns once this line was reported."""
        if (name, text) not in self.lines:
            await self._awaited.setdefault((name, text), asyncio.Event()).wait()

    def _plan(self, options: StackOptions, sockets: Path) -> tuple[ServiceCommand, ...]:
        self.folder = sockets
        return tuple(
            ServiceCommand(
                name=name,
                argv=(sys.executable, str(PROCESS), str(sockets / f"{name}.sock"), mode),
                health_socket=sockets / f"{name}.sock",
                environment={},
            )
            for name, mode in self._modes.items()
        )

    def position(self, name: str, text: str) -> int:
        return next(i for i, line in enumerate(self.lines) if line[0] == name and line[1].startswith(text))


async def test_the_scheduler_starts_after_its_workers_and_stops_before_them():
    stack = Stack(verify="serve", draft="serve", scheduler="serve")
    async with stack.supervisor:
        assert set(stack.supervisor.pids) == {"verify", "draft", "scheduler"}
    for worker in ("verify", "draft"):
        assert stack.position(worker, "ready") < stack.position("scheduler", "starting")
        assert stack.position("scheduler", "down") < stack.position(worker, "down")


async def test_the_sockets_are_removed_at_the_end():
    stack = Stack(verify="serve", scheduler="serve")
    async with stack.supervisor:
        assert (stack.folder / "verify.sock").exists()
    assert not stack.folder.exists()


async def test_a_service_that_dies_while_starting_ends_the_others_and_says_its_last_words():
    stack = Stack(verify="never", draft="die", scheduler="serve")
    with pytest.raises(ChildFailure, match="draft service ended with exit code 3") as caught:
        await stack.supervisor.__aenter__()
    assert "cannot read the model" in str(caught.value)
    assert stack.position("verify", "stopping")
    assert all(name != "scheduler" for name, _ in stack.lines)


async def test_a_service_that_is_killed_while_serving_ends_the_watch():
    stack = Stack(verify="serve", scheduler="serve")
    async with stack.supervisor as supervisor:
        watch = asyncio.create_task(supervisor.watch())
        os.kill(supervisor.pids["verify"], signal.SIGKILL)
        with pytest.raises(ChildFailure, match="verify service ended with exit code -9"):
            await watch


async def test_cancelling_the_start_ends_what_was_started():
    stack = Stack(verify="never", scheduler="serve")
    start = asyncio.create_task(stack.supervisor.__aenter__())
    async with asyncio.timeout(20):
        await stack.saw("verify", "up")
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    assert ("verify", "down") in stack.lines


async def test_killing_ends_a_service_that_ignores_the_polite_signal():
    stack = Stack(verify="serve", scheduler="stubborn")
    async with asyncio.timeout(30):
        async with stack.supervisor as supervisor:
            stopping = asyncio.create_task(supervisor.stop())
            await stack.saw("scheduler", "stopping")
            supervisor.kill()
            await stopping
