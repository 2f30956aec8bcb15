"""All three real services over Unix sockets in one process, on tiny random models."""

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest

import draft_service.loading
import verify_service.loading
from draft_service.config import DraftConfig, DrafterSettings
from draft_service.servicer import DraftServicer
from scheduler_service.config import (
    LimitsSection,
    ModelSection,
    PolicySection,
    SchedulerConfig,
    WorkersConfig,
)
from scheduler_service.scheduler import Scheduler
from scheduler_service.servicer import SERVICE, SchedulerServicer
from spearhead.client import AsyncClient
from spearhead.model.settings import KvCacheSettings, ModelSettings
from spearhead.rpc import EndpointConfig, Server
from spearhead.telemetry import Telemetry
from spearhead.tokenizer import Tokenizer
from spearhead.v1 import draft_pb2_grpc, scheduler_pb2_grpc, verify_pb2_grpc
from spearhead.worker.model_thread import ModelThread
from verify_service.config import VariantSettings, VerifyConfig
from verify_service.servicer import VerifyServicer
from verify_service.verifier import Verifier


@dataclass
class Worker:
    """One model service at a fixed address; it may be killed and started again."""

    service: str
    address: str
    telemetry: Telemetry
    servicer: Any = None
    thread: Any = None
    server: Any = None

    async def start(self, make: Any, register: Any, attach: Any) -> None:
        self._parts = (make, register, attach)
        await self.restart()

    async def restart(self) -> None:
        make, register, attach = self._parts
        self.thread = ModelThread(self.service)
        self.server = Server(
            EndpointConfig(listen=self.address), service_names=[self.service], telemetry=self.telemetry
        )
        self.servicer = make(self.thread)
        register(self.servicer, self.server.grpc_server)
        attach(self.servicer)
        await self.server.start()

    async def kill(self) -> None:
        await self.server.grpc_server.stop(None)
        await self.server.drain(0.0)
        self.thread.close()


@dataclass
class RealStack:
    """Everything that a test may look at."""

    client: AsyncClient
    scheduler: Scheduler
    verify: Worker
    draft: Worker | None
    verifier: Verifier
    draft_engine: Any
    tokenizer: Tokenizer
    changed: asyncio.Event
    telemetries: dict[str, Telemetry] = field(default_factory=dict)

    async def until(self, condition: Any, timeout_s: float = 30.0) -> None:
        """Waits for the model threads and the scheduler to make a condition true."""
        async with asyncio.timeout(timeout_s):
            while not condition():
                await self.verify.thread.run(lambda: None)
                await self.client.load()

    async def idle(self) -> None:
        """Nothing lives anywhere: no request, no sequence, every page free."""
        engines = [self.verifier.engine, *([self.draft_engine] if self.draft_engine else [])]
        await self.until(
            lambda: not list(self.scheduler.requests) and not any(engine.sequence_count for engine in engines)
        )
        for engine in engines:
            engine.check_integrity()
            assert engine.pages.free_page_count == engine.pages.page_count


@pytest.fixture
def socket_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="sp") as folder:
        yield Path(folder)


@pytest.fixture
def real_stack(socket_folder: Path, tiny_checkpoint: Any) -> Any:
    """``async with real_stack(draft="model", variant="w4", …) as stack``."""

    @contextlib.asynccontextmanager
    async def make(
        *,
        draft: str | None = "model",
        draft_seed: int = 0,
        variant: str = "w4",
        pages: int = 256,
        policy: dict[str, Any] | None = None,
        limits: dict[str, Any] | None = None,
        telemetries: dict[str, Telemetry] | None = None,
        **overrides: Any,
    ) -> AsyncIterator[RealStack]:
        overrides = {"max_position_embeddings": 1024} | overrides
        target = tiny_checkpoint("llama", **overrides)
        telemetries = telemetries or {}

        def telemetry(name: str) -> Telemetry:
            return telemetries.get(name) or Telemetry.disabled()

        model, served = verify_service.loading.load(
            VerifyConfig(
                model=ModelSettings(path=str(target), dtype="float32", threads=1),
                variants=VariantSettings(hold=("fp16", "w4"), serve=variant, quantization="group32"),
                kv_cache=KvCacheSettings(page_count=pages),
            )
        )
        verifier = Verifier(model.engine, served)
        verify = Worker("spearhead.v1.VerifyService", f"unix:{socket_folder / 'v.sock'}", telemetry("verify"))
        await verify.start(
            lambda thread: VerifyServicer(thread, telemetry("verify")),
            verify_pb2_grpc.add_VerifyServiceServicer_to_server,
            lambda servicer: servicer.attach(model, verifier),
        )
        drafter, draft_engine = None, None
        if draft is not None:
            source = target if draft_seed == 0 else tiny_checkpoint("llama", seed=draft_seed, **overrides)
            loaded = draft_service.loading.load(
                DraftConfig(
                    model=ModelSettings(path=str(source), dtype="float32", threads=1),
                    drafter=DrafterSettings(kind=draft),  # type: ignore[arg-type]
                    kv_cache=KvCacheSettings(page_count=pages),
                )
            )
            draft_engine = loaded.model.engine if loaded.model else None
            drafter = Worker(
                "spearhead.v1.DraftService", f"unix:{socket_folder / 'd.sock'}", telemetry("draft")
            )
            await drafter.start(
                lambda thread: DraftServicer(thread, telemetry("draft")),
                draft_pb2_grpc.add_DraftServiceServicer_to_server,
                lambda servicer: servicer.attach(loaded, kind=draft, max_draft_tokens=16),
            )
        config = SchedulerConfig(
            model=ModelSection(tokenizer=target),
            verify=WorkersConfig(address=verify.address),
            draft=WorkersConfig(address=drafter.address) if drafter else None,
            limits=LimitsSection(**({"min_reconnect_s": 0.02, "max_reconnect_s": 0.1} | (limits or {}))),
            policy=PolicySection(**(policy or {})),
        )
        tokenizer = Tokenizer.load(target)
        changed = asyncio.Event()
        scheduler = Scheduler(config, tokenizer, telemetry("scheduler"), on_change=changed.set)
        server = Server(
            EndpointConfig(listen=f"unix:{socket_folder / 's.sock'}"),
            service_names=[SERVICE],
            telemetry=telemetry("scheduler"),
        )
        scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(
            SchedulerServicer(scheduler, tokenizer, config), server.grpc_server
        )
        address = await server.start()
        async with scheduler.running(), AsyncClient(address) as client:
            stack = RealStack(
                client, scheduler, verify, drafter, verifier, draft_engine, tokenizer, changed, telemetries
            )
            async with asyncio.timeout(30):
                while not (scheduler.ready and (drafter is None or scheduler.pool.draft_status == "ready")):
                    changed.clear()
                    await changed.wait()
            try:
                yield stack
                scheduler.check_integrity()
            finally:
                await server.drain(0.0)
                for worker in (verify, drafter):
                    if worker is not None:
                        with contextlib.suppress(grpc.aio.UsageError):
                            await worker.kill()

    return make
