"""The life of the process: listen, connect, serve, drain."""

import asyncio

from scheduler_service.config import SchedulerConfig
from scheduler_service.latency_table import LatencyTable
from scheduler_service.scheduler import Scheduler
from scheduler_service.servicer import DRAIN_METHODS, SERVICE, SchedulerServicer
from spearhead.rpc import Server, run_until_signal, spare_what_is_there
from spearhead.telemetry import Telemetry
from spearhead.tokenizer import Tokenizer
from spearhead.v1 import scheduler_pb2_grpc

DRAFT = "draft"
"""Health name that serves while drafts are available. Without them requests are only slower."""


async def serve(config: SchedulerConfig) -> None:
    """Serves until a signal ends it.

    Raises:
        StartupError: The configuration cannot be used, or the verify service does not fit.
    """
    tokenizer = Tokenizer.load(config.model.tokenizer)
    table = LatencyTable.load(config.policy.table) if config.policy.table is not None else None
    telemetry = Telemetry.start("scheduler_service", config.telemetry)
    try:
        server = Server(
            config.server,
            service_names=[SERVICE],
            telemetry=telemetry,
            drain_methods=DRAIN_METHODS,
            keeps_limits=True,
        )
        changed = asyncio.Event()
        scheduler = Scheduler(config, tokenizer, telemetry, table=table, on_change=changed.set)
        servicer = SchedulerServicer(scheduler, tokenizer, config)
        register = scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server
        register(servicer, server.grpc_server)  # type: ignore[no-untyped-call]
        await _run(config, server, scheduler, changed)
    finally:
        telemetry.shutdown()


async def _run(config: SchedulerConfig, server: Server, scheduler: Scheduler, changed: asyncio.Event) -> None:
    limits = config.limits
    server.health.watch_heartbeat(
        lambda: scheduler.pool.last_progress_s,
        lambda: scheduler.pool.busy,
        # A step may take this long and still be one that works.
        2 * (limits.verify_timeout_s + limits.draft_timeout_s),
    )
    await server.start()
    spare_what_is_there()
    server.health.set_started()

    async def drain() -> None:
        scheduler.drain()

    async with scheduler.running() as loop:
        serving = asyncio.create_task(run_until_signal(server, on_drain=drain))
        watching = asyncio.create_task(_watch_workers(server, scheduler, changed))
        try:
            await asyncio.wait({serving, watching, loop}, return_when=asyncio.FIRST_COMPLETED)
            for task in (loop, watching, serving):
                if task.done():
                    task.result()
        finally:
            for task in (watching, serving):
                task.cancel()
            await asyncio.wait({watching, serving})
            await server.drain(0.0)


async def _watch_workers(server: Server, scheduler: Scheduler, changed: asyncio.Event) -> None:
    """Readiness needs one verify service; when none fits, the start ends."""
    while True:
        changed.clear()
        scheduler.pool.check_start()
        server.health.set_ready(scheduler.ready, "" if scheduler.ready else scheduler.pool.problem)
        server.health.set_part(DRAFT, scheduler.pool.draft_available)
        await changed.wait()
