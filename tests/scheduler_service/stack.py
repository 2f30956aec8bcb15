"""A scheduler behind its real server, on loopback, with fake workers behind their real protos."""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import grpc

from scheduler_service.addresses import Resolve
from scheduler_service.config import (
    LimitsSection,
    ModelSection,
    PolicySection,
    SchedulerConfig,
    ServerSection,
    WorkersConfig,
)
from scheduler_service.latency_table import LatencyTable
from scheduler_service.scheduler import Scheduler
from scheduler_service.servicer import DRAIN_METHODS, SERVICE, SchedulerServicer
from scheduler_service.validation import RequestLimits, resolve
from scheduler_service.wire import worker_sampling
from spearhead.rpc import Server, TargetConfig, create_channel
from spearhead.telemetry import Telemetry
from spearhead.tokenizer import Tokenizer
from spearhead.v1 import (
    draft_pb2_grpc,
    scheduler_pb2,
    scheduler_pb2_grpc,
    verify_pb2_grpc,
)
from tests.scheduler_service.fake_workers import FakeDraft, FakeVerify
from tests.scheduler_service.toy_model import ToyModel

FAST_LIMITS: dict[str, Any] = {
    "min_reconnect_s": 0.01,
    "max_reconnect_s": 0.05,
    "min_draft_pause_s": 0.01,
    "max_draft_pause_s": 0.05,
    "max_running_requests": 16,
}


@dataclasses.dataclass
class Answer:
    """A collected stream."""

    started: scheduler_pb2.GenerationStarted
    token_ids: list[int]
    text: str
    logprobs: list[Any]
    finished: scheduler_pb2.GenerationFinished


class WorkerServer:
    """One fake worker on a Unix socket; may be killed and started again at the same address."""

    def __init__(self, worker: FakeVerify | FakeDraft, path: Path) -> None:
        self.worker = worker
        self.address = f"unix:{path}"
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        self._server = grpc.aio.server()
        if isinstance(self.worker, FakeVerify):
            verify_pb2_grpc.add_VerifyServiceServicer_to_server(self.worker, self._server)
        else:
            draft_pb2_grpc.add_DraftServiceServicer_to_server(self.worker, self._server)
        self._server.add_insecure_port(self.address)
        await self._server.start()

    async def kill(self) -> None:
        if self._server is not None:
            server, self._server = self._server, None
            await server.stop(None)


class Stack:
    """Everything, running."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        model: ToyModel,
        verify_servers: Sequence[WorkerServer],
        draft_servers: Sequence[WorkerServer],
        scheduler: Scheduler,
        server: Server,
        telemetry: Telemetry,
        channel: grpc.aio.Channel,
        workers_changed: asyncio.Event,
    ) -> None:
        self.tokenizer = tokenizer
        self.model = model
        self.verify_servers, self.draft_servers = verify_servers, draft_servers
        self.verify_server, self.draft_server = verify_servers[0], draft_servers[0]
        self.verifies: list[Any] = [server.worker for server in verify_servers]
        self.drafts: list[Any] = [server.worker for server in draft_servers]
        self.verify: Any = self.verifies[0]
        self.draft: Any = self.drafts[0]
        self.scheduler = scheduler
        self.server = server
        self.telemetry = telemetry
        self.channel = channel
        self._workers_changed = workers_changed
        self.stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)

    @property
    def workers(self) -> list[Any]:
        """All fake workers."""
        return [*self.verifies, *self.drafts]

    def request(
        self, prompt: str | Sequence[int] = "once upon a time", **fields: Any
    ) -> scheduler_pb2.GenerateRequest:
        """A request; keywords are sampling parameters, except those that are fields of the request."""
        own = {name: fields.pop(name) for name in list(fields) if name in OWN_FIELDS}
        speculate = own.pop("max_draft_tokens", None)
        request = scheduler_pb2.GenerateRequest(**own)
        if isinstance(prompt, str):
            request.prompt = prompt
        else:
            request.tokens.token_ids.extend(prompt)
        fields.setdefault("seed", 7)
        request.sampling.MergeFrom(scheduler_pb2.SamplingParams(**fields))
        if speculate is not None:
            request.speculation.max_draft_tokens = speculate
        return request

    async def generate(self, request: scheduler_pb2.GenerateRequest, **kwargs: Any) -> Answer:
        """The whole answer."""
        return await Stream(self.stub.Generate(request, **kwargs)).rest()

    async def open(self, request: scheduler_pb2.GenerateRequest, **kwargs: Any) -> "Stream":
        """A running request, after its first tokens."""
        stream = Stream(self.stub.Generate(request, **kwargs))
        await stream.next("started")
        await stream.next("delta")
        return stream

    def expected(self, request: scheduler_pb2.GenerateRequest) -> list[int]:
        """The tokens that the target's law gives, computed one after the other; max_tokens of them."""
        prompt = list(request.tokens.token_ids) or self.tokenizer.encode(request.prompt)
        limits = RequestLimits(
            vocab_size=self.tokenizer.vocab_size,
            context_length=1 << 20,
            eos_token_ids=frozenset(self.tokenizer.eos_token_ids),
            max_prompt_bytes=1 << 20,
            default_max_tokens=256,
            kv_page_size=16,
            kv_page_count=1 << 20,
        )
        spec = resolve(request, prompt, limits, request_id="reference", random_seed=0)
        return self.model.generate(prompt, spec.max_tokens, worker_sampling(spec))

    async def wait_workers(self, condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
        """Waits until something about the connections to the workers holds."""
        async with asyncio.timeout(timeout_s):
            while not condition():
                self._workers_changed.clear()
                await self._workers_changed.wait()

    async def wait_load(self, condition: Callable[[scheduler_pb2.GetLoadResponse], bool]) -> None:
        """Asks for the load until a condition holds."""
        async with asyncio.timeout(20):
            while not condition(await self.stub.GetLoad(scheduler_pb2.GetLoadRequest())):
                pass

    async def scheduler_empty(self) -> None:
        await self.wait_load(lambda load: load.running_requests == load.waiting_requests == 0)

    async def idle(self) -> None:
        """Waits until no request lives and both workers hold nothing; then nothing may be left anywhere."""
        await self.scheduler_empty()
        for worker in self.workers:
            await worker.wait_empty()
        self.check()
        assert [worker.used_pages for worker in self.workers] == [0] * len(self.workers)
        assert list(self.scheduler.requests) == []
        await self.wait_load(lambda load: load.kv_cache_usage == 0.0)  # The reply may be under way.

    def check(self) -> None:
        """The contract was kept and the books agree."""
        self.scheduler.check_integrity()
        assert [breach for worker in self.workers for breach in worker.breaches] == []

    def metric(self, name: str, **labels: str) -> float:
        value = self.telemetry.registry.get_sample_value(f"spearhead_{name}", labels)
        assert value is not None, f"no metric {name} {labels}"
        return value


class Stream:
    """A running answer."""

    def __init__(self, call: Any) -> None:
        self.call = call
        self.responses: list[scheduler_pb2.GenerateResponse] = []
        self._iterator = aiter(call)

    async def next(self, kind: str) -> scheduler_pb2.GenerateResponse:
        response = await anext(self._iterator)
        assert response.WhichOneof("event") == kind
        self.responses.append(response)
        return response

    async def rest(self) -> "Answer":
        async for response in self._iterator:
            self.responses.append(response)
        return collect(self.responses)

    def cancel(self) -> None:
        self.call.cancel()


OWN_FIELDS = {"request_id", "speculation", "precision", "slo", "priority", "max_draft_tokens"}


def collect(responses: Sequence[scheduler_pb2.GenerateResponse]) -> Answer:
    """The whole answer; its messages must come in the contract's order."""
    started, finished, token_ids, texts, logprobs = None, None, [], [], []
    for response in responses:
        match response.WhichOneof("event"):
            case "started":
                assert started is None
                started = response.started
            case "delta":
                assert started is not None and finished is None
                token_ids += response.delta.token_ids
                texts.append(response.delta.text)
                logprobs += response.delta.logprobs
            case "finished":
                assert finished is None
                finished = response.finished
    assert started is not None and finished is not None
    answer = Answer(started, token_ids, "".join(texts), logprobs, finished)
    check_usage(answer)
    return answer


def check_usage(answer: Answer) -> None:
    usage, speculation = answer.finished.usage, answer.finished.speculation
    assert usage.completion_tokens == len(answer.token_ids)
    assert usage.prompt_tokens == answer.started.prompt_token_count
    assert usage.cached_tokens < usage.prompt_tokens
    assert speculation.accepted_tokens <= speculation.drafted_tokens
    assert speculation.accepted_tokens + speculation.rounds == usage.completion_tokens
    assert speculation.active or speculation.inactive_reason
    assert speculation.active or not speculation.drafted_tokens


def workers_at(servers: Sequence[WorkerServer]) -> WorkersConfig:
    if len(servers) == 1:
        return WorkersConfig(address=servers[0].address)
    return WorkersConfig(addresses=tuple(server.address for server in servers))


@contextlib.asynccontextmanager
async def run_stack(
    folder: Path,
    tokenizer_folder: Path,
    *,
    model: ToyModel,
    verify: dict[str, Any] | None = None,
    draft: dict[str, Any] | None = None,
    with_draft: bool = True,
    verify_count: int = 1,
    draft_count: int = 1,
    resolve: Resolve | None = None,
    server: dict[str, Any] | None = None,
    limits: dict[str, Any] | None = None,
    policy: dict[str, Any] | None = None,
    telemetry: Telemetry | None = None,
    table: LatencyTable | None = None,
    wait_ready: bool = True,
    tokenizer_class: type[Tokenizer] = Tokenizer,
) -> AsyncIterator[Stack]:
    """Starts fakes and scheduler; at the end nothing may be left on the workers."""
    tokenizer = tokenizer_class.load(tokenizer_folder)
    common = {
        "tokenizer_hash": tokenizer.hash,
        "vocab_size": tokenizer.vocab_size,
        "eos_token_ids": tokenizer.eos_token_ids,
    }
    verify_servers = [
        WorkerServer(FakeVerify(model, **(common | (verify or {}))), folder / f"v{number or ''}.sock")
        for number in range(verify_count)
    ]
    draft_servers = [
        WorkerServer(FakeDraft(model, **(common | (draft or {}))), folder / f"d{number or ''}.sock")
        for number in range(draft_count)
    ]
    servers = [*verify_servers, *draft_servers]
    config = SchedulerConfig(
        model=ModelSection(tokenizer=tokenizer_folder),
        verify=workers_at(verify_servers) if resolve is None else WorkersConfig(address="dns:///verify:1"),
        draft=workers_at(draft_servers) if with_draft else None,
        limits=LimitsSection(**(FAST_LIMITS | (limits or {}))),
        policy=PolicySection(**({"table": Path("in memory")} if table else {}), **(policy or {})),
    )
    telemetry = telemetry or Telemetry.disabled()
    workers_changed = asyncio.Event()
    scheduler = Scheduler(
        config, tokenizer, telemetry, table=table, on_change=workers_changed.set, resolve=resolve
    )
    public = Server(
        ServerSection(**({"listen": f"unix:{folder / 's.sock'}"} | (server or {}))),
        service_names=[SERVICE],
        telemetry=telemetry,
        drain_methods=DRAIN_METHODS,
        keeps_limits=True,
    )
    scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(
        SchedulerServicer(scheduler, tokenizer, config), public.grpc_server
    )
    for worker_server in servers:
        await worker_server.start()
    address = await public.start()
    channel = create_channel(TargetConfig(address=address))
    stack = Stack(
        tokenizer,
        model,
        verify_servers,
        draft_servers,
        scheduler,
        public,
        telemetry,
        channel,
        workers_changed,
    )
    async with scheduler.running() as loop:
        try:
            if wait_ready:
                await stack.wait_workers(
                    lambda: (
                        len(scheduler.pool.ready_engines) == verify_count
                        and all("not connected" not in e.drafting.status for e in scheduler.pool.engines)
                    )
                )
            yield stack
            stack.check()
        finally:
            await channel.close()
            await public.drain(0.0)
            for worker_server in servers:
                await worker_server.kill()
        assert not loop.done() or loop.result() is None
