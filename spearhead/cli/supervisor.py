"""Runs a local stack: starts the workers, then the scheduler; stops in the opposite order."""

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from spearhead.cli.child import Child
from spearhead.cli.stack import ServiceCommand, StackOptions, service_commands, worker_address
from spearhead.rpc import TargetConfig, create_channel

_POLL_S = 0.1
_PROGRESS_EVERY_S = 5.0
_DRAIN_S = 40.0
_WORKER_STOP_S = 10.0

Report = Callable[[str, str], None]
Plan = Callable[[StackOptions, Path], tuple[ServiceCommand, ...]]


class ChildFailure(Exception):
    """A service ended although nobody asked it to; of no server, hence outside the error tree."""


class Supervisor:
    """Owns the processes of one stack; an async context manager.

    Args:
        options: What to start.
        log: Called with a service's name and each line that it prints.
        progress: Called with a service's name and what it is doing, while the stack starts and stops.
        workers_only: Start no scheduler.
        plan: Gives the processes to start.
    """

    def __init__(
        self,
        options: StackOptions,
        *,
        log: Report,
        progress: Report,
        workers_only: bool = False,
        plan: Plan = service_commands,
    ) -> None:
        self._options = options
        self._plan = plan
        self._workers_only = workers_only
        self._log = log
        self._progress = progress
        self._children: list[Child] = []
        self._sockets = Path()

    async def __aenter__(self) -> "Supervisor":
        self._sockets = Path(tempfile.mkdtemp(prefix="spearhead-"))
        try:
            *workers, scheduler = self._plan(self._options, self._sockets)
            await self._start(workers, probe="startup")
            if not self._workers_only:
                await self._start([scheduler], probe="readiness")
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def address(self) -> str:
        """Where the scheduler listens."""
        return self._options.listen

    @property
    def pids(self) -> dict[str, int]:
        """Process id by service name."""
        return {child.name: child.pid for child in self._children}

    def worker_address(self, name: str) -> str | None:
        """Where the worker "verify" or "draft" listens; ``None`` when it was not started."""
        return worker_address(self._sockets, name) if name in self.pids else None

    async def watch(self) -> None:
        """Returns never while all services run.

        Raises:
            ChildFailure: One has ended; the text holds its last lines.
        """
        waits = {asyncio.create_task(child.wait()): child for child in self._children}
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waits:
                task.cancel()
        raise _failure(waits[done.pop()])

    async def stop(self) -> None:
        """Drains the scheduler, then ends the workers; removes the sockets."""
        for child in reversed(self._children):
            if child.exit_code is None:
                self._progress(child.name, "stopping")
                await child.stop(_DRAIN_S if child.name == "scheduler" else _WORKER_STOP_S)
        shutil.rmtree(self._sockets, ignore_errors=True)

    def kill(self) -> None:
        """Ends everything at once; a running :meth:`stop` returns soon after."""
        for child in self._children:
            child.kill()

    async def _start(self, commands: Sequence[ServiceCommand], *, probe: str) -> None:
        started = []
        for command in commands:
            child = await Child.start(command.name, command.argv, self._log, command.environment)
            self._children.append(child)
            started.append((command, child))
        try:
            async with asyncio.TaskGroup() as group:
                for command, child in started:
                    group.create_task(self._wait_for(command, child, probe))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None

    async def _wait_for(self, command: ServiceCommand, child: Child, probe: str) -> None:
        loop = asyncio.get_running_loop()
        began_s = reported_s = loop.time()
        self._progress(command.name, "starting")
        async with create_channel(TargetConfig(address=f"unix:{command.health_socket}")) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            # Without the first test the channel would back off for seconds while the socket is missing.
            while not (command.health_socket.exists() and await _serving(health, probe)):
                if child.exit_code is not None:
                    await child.wait()
                    raise _failure(child)
                if loop.time() - reported_s >= _PROGRESS_EVERY_S:
                    reported_s = loop.time()
                    self._progress(command.name, f"still loading after {loop.time() - began_s:.0f} s")
                await asyncio.sleep(_POLL_S)
        self._progress(command.name, f"ready after {loop.time() - began_s:.1f} s")


async def _serving(health: health_pb2_grpc.HealthStub, probe: str) -> bool:
    try:
        answer = await health.Check(health_pb2.HealthCheckRequest(service=probe), timeout=5.0)
    except grpc.RpcError:
        return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def _failure(child: Child) -> ChildFailure:
    lines = "\n".join(f"  {line}" for line in child.tail) or "  (it printed nothing)"
    return ChildFailure(
        f"the {child.name} service ended with exit code {child.exit_code}; its last lines:\n{lines}"
    )
