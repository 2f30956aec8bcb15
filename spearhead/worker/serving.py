"""The life of a model service: listen, load, serve, drain."""

import asyncio
import logging
import os
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from spearhead.errors import RankFailure, SpearheadError
from spearhead.rpc import EndpointConfig, Server, run_until_signal, spare_what_is_there
from spearhead.telemetry import ALWAYS_RECORDED, Telemetry, TelemetryConfig, record_span
from spearhead.worker.device_time import device_timer
from spearhead.worker.ending import Ending
from spearhead.worker.model_thread import ModelThread

EXIT_FAILED = 1

_LAST_WORDS_S = 1.0
"""What calls get to carry the error away once the process cannot go on."""

_log = logging.getLogger("spearhead.worker")


class WorkerServicer(Protocol):
    """What a worker's servicer offers to its process."""

    def end_streams(self) -> None:
        """Ends every stream after the message it is computing."""


Servicer = TypeVar("Servicer", bound=WorkerServicer)


async def serve_worker(
    process: str,
    service: str,
    *,
    server_config: EndpointConfig,
    telemetry_config: TelemetryConfig,
    stuck_after_s: float,
    make_servicer: Callable[[ModelThread, Telemetry], Servicer],
    register: Callable[[Servicer, Any], None],
    load: Callable[[Servicer], None],
    ending: Ending | None = None,
    abandon: Callable[[], None] = lambda: None,
) -> None:
    """Runs a worker until a signal ends it, or its ending is reached.

    The port opens first, so that probes can tell loading from broken; calls get NotReady until ``load``,
    which runs on the model thread, has attached the model. An ending with an error turns readiness off, fails
    the calls that wait for the model, and ends the process with code 1. Where the process ends without
    returning, ``abandon`` is called first.

    Raises:
        StartupError: The configuration or the checkpoint cannot be used.
    """
    telemetry = Telemetry.start(process, telemetry_config)
    thread = ModelThread(process, ending)
    ending = ending or Ending()
    failure: SpearheadError | None = None
    try:
        server = Server(server_config, service_names=[service], telemetry=telemetry)
        async with server:
            servicer = make_servicer(thread, telemetry)
            register(servicer, server.grpc_server)
            await server.start()
            serving = asyncio.create_task(run_until_signal(server, on_drain=_ender(servicer)))
            load_start_ns = time.time_ns()
            loading = asyncio.create_task(thread.run(lambda: load(servicer)))
            ended = asyncio.create_task(ending.wait())
            await asyncio.wait({serving, loading, ended}, return_when=asyncio.FIRST_COMPLETED)
            if loading.done() and not ended.done():
                loading.result()
                _record_load(telemetry, process, load_start_ns)
                thread.measure_with(device_timer())
                spare_what_is_there()
                announce(server, thread, stuck_after_s)
                _log.info("ready")
            await asyncio.wait({serving, ended}, return_when=asyncio.FIRST_COMPLETED)
            if ended.done() and (failure := ended.result()) is not None:
                server.health.set_ready(False, failure.message)
                await server.drain(_LAST_WORDS_S)
            else:
                await serving
    except RankFailure as error:
        failure = error
    finally:
        telemetry.shutdown()
        thread.close(wait=False)
    leave(thread, failure, abandon)


def announce(server: Server, thread: ModelThread, stuck_after_s: float) -> None:
    """The model is there: started and ready, and alive as long as its thread gets on."""
    server.health.watch_heartbeat(lambda: thread.last_progress_s, lambda: thread.busy, stuck_after_s)
    server.health.set_started()
    server.health.set_ready(True)


def _record_load(telemetry: Telemetry, process: str, start_ns: int) -> None:
    record_span(
        telemetry.tracer,
        "model.load",
        start_ns=start_ns,
        end_ns=time.time_ns(),
        attributes={ALWAYS_RECORDED: True, "spearhead.worker": process},
    )


def leave(thread: ModelThread, failure: SpearheadError | None, abandon: Callable[[], None]) -> None:
    """Ends the process where returning would not: work that still runs must not hold it up.

    Args:
        thread: Of the model.
        failure: Why the process cannot go on; ``None`` = it was told to end.
        abandon: Called before it ends so; ends what it started.
    """
    if failure is not None:
        _log.critical("%s", failure.message)
    elif thread.busy:
        _log.warning("the model thread is still busy; the process ends without it")
    if thread.busy or failure is not None:
        abandon()
        logging.shutdown()
        # A normal exit would wait for the thread, which cannot be interrupted inside native code.
        os._exit(0 if failure is None else EXIT_FAILED)


def _ender(servicer: WorkerServicer) -> Callable[[], Any]:
    async def end() -> None:
        servicer.end_streams()

    return end
