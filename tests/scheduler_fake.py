# ruff: noqa: N802  (the contract names the methods)
"""A scheduler that follows the contract with made-up tokens, on a real gRPC server."""

import asyncio
from dataclasses import dataclass, field

from spearhead.errors import NotReady, SpearheadError
from spearhead.rpc import EndpointConfig, Server
from spearhead.telemetry import Telemetry
from spearhead.v1 import scheduler_pb2, scheduler_pb2_grpc, types_pb2

RANDOM_SEED = 2**64 - 3
SERVICE = "spearhead.v1.SchedulerService"


@dataclass
class FakeScheduler(scheduler_pb2_grpc.SchedulerServiceServicer):
    """Answers every request with the numbers 0, 1, 2, … as text, one token a delta.

    Attributes:
        failures: Raised by the next calls, one each, before anything is sent.
        starts_only: So many of the next answers break after their first message.
        break_after: Raise ``NotReady`` after this many deltas; ``None`` = never.
        endless: Send deltas until the client goes away.
        finish: Send the last message.
        requests: Seen so far, with their metadata.
        gone: Set when a client left in the middle.
    """

    failures: list[SpearheadError] = field(default_factory=list)
    starts_only: int = 0
    break_after: int | None = None
    endless: bool = False
    finish: bool = True
    requests: list[tuple[scheduler_pb2.GenerateRequest, dict[str, str]]] = field(default_factory=list)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    running: set[str] = field(default_factory=set)

    async def Generate(self, request, context):
        self.requests.append((request, dict(context.invocation_metadata())))
        if self.failures:
            raise self.failures.pop(0)
        self.running.add(request.request_id)
        try:
            yield _started(request)
            if self.starts_only:
                self.starts_only -= 1
                raise NotReady("the verify service is away; retry later", retry_after_s=0.0)
            number = 0
            while self.endless or number < request.sampling.max_tokens:
                if number == self.break_after:
                    raise NotReady("the verify service is away; retry later", retry_after_s=0.0)
                yield _delta(number)
                number += 1
                if self.endless:
                    await asyncio.sleep(0.005)
            if self.finish:
                yield _finished(request, number)
        except (asyncio.CancelledError, GeneratorExit):
            self.gone.set()
            raise
        finally:
            self.running.discard(request.request_id)

    async def Abort(self, request, context):
        if self.failures:
            raise self.failures.pop(0)
        return scheduler_pb2.AbortResponse(found=request.request_id in self.running)

    async def GetServerInfo(self, request, context):
        target = types_pb2.ModelInfo(model="tiny", vocab_size=100, dtype="float32")
        return scheduler_pb2.GetServerInfoResponse(
            version="0.1.0", protocol_version=1, target=target, variant="w4", draft_status="absent"
        )

    async def GetLoad(self, request, context):
        return scheduler_pb2.GetLoadResponse(running_requests=len(self.running), kv_cache_usage=0.25)


@dataclass
class Running:
    """A served fake."""

    scheduler: FakeScheduler
    server: Server
    address: str


class Serving:
    """Serves a fake with some endpoint configuration; an async context manager."""

    def __init__(self, endpoint: EndpointConfig) -> None:
        self._endpoint = endpoint

    async def __aenter__(self) -> Running:
        server = Server(self._endpoint, service_names=[SERVICE], telemetry=Telemetry.disabled())
        scheduler = FakeScheduler()
        scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(scheduler, server.grpc_server)
        address = await server.start()
        server.health.set_started()
        server.health.set_ready(True)
        self._server = server
        return Running(scheduler=scheduler, server=server, address=address)

    async def __aexit__(self, *_: object) -> None:
        await self._server.drain(0.0)


def _started(request: scheduler_pb2.GenerateRequest) -> scheduler_pb2.GenerateResponse:
    started = scheduler_pb2.GenerationStarted(
        request_id=request.request_id,
        prompt_token_count=3,
        seed=request.sampling.seed if request.sampling.HasField("seed") else RANDOM_SEED,
    )
    return scheduler_pb2.GenerateResponse(started=started)


def _delta(number: int) -> scheduler_pb2.GenerateResponse:
    delta = scheduler_pb2.GenerationDelta(token_ids=[number], text=f"{number} ")
    return scheduler_pb2.GenerateResponse(delta=delta)


def _finished(request: scheduler_pb2.GenerateRequest, count: int) -> scheduler_pb2.GenerateResponse:
    finished = scheduler_pb2.GenerationFinished(
        reason=scheduler_pb2.FINISH_REASON_LENGTH,
        usage=scheduler_pb2.Usage(prompt_tokens=3, completion_tokens=count),
        speculation=scheduler_pb2.SpeculationStats(
            drafted_tokens=8, accepted_tokens=6, rounds=2, active=True
        ),
    )
    finished.timings.e2e.FromMilliseconds(1500)
    finished.timings.time_to_first_token.FromMilliseconds(500)
    return scheduler_pb2.GenerateResponse(finished=finished)
