"""The public service: converts, asks the scheduler, converts."""

import asyncio
import contextlib
import secrets
import time
import uuid
from collections.abc import Iterator

import grpc
from google.protobuf.duration_pb2 import Duration
from opentelemetry import trace

import spearhead
from scheduler_service.accounting import Summary
from scheduler_service.config import SchedulerConfig
from scheduler_service.delivery import Delta
from scheduler_service.output import FinishReason
from scheduler_service.request import Request
from scheduler_service.scheduler import Scheduler
from scheduler_service.spec import GenerationSpec
from scheduler_service.validation import check_request, resolve
from spearhead.errors import DeadlineExceeded, InvalidRequest, RequestExists
from spearhead.rpc.caller import Caller, current_caller
from spearhead.tokenizer import SHORT_TEXT, Tokenizer
from spearhead.v1 import scheduler_pb2, scheduler_pb2_grpc

SERVICE = "spearhead.v1.SchedulerService"
DRAIN_METHODS = frozenset(f"{SERVICE}/{method}" for method in ("Abort", "GetLoad", "GetServerInfo"))
"""What a draining server still answers: running requests may be watched and ended."""

_FINISH_REASONS = {
    FinishReason.STOP: scheduler_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: scheduler_pb2.FINISH_REASON_LENGTH,
    FinishReason.ABORT: scheduler_pb2.FINISH_REASON_ABORT,
}


class SchedulerServicer(scheduler_pb2_grpc.SchedulerServiceServicer):
    """``spearhead.v1.SchedulerService``.

    Args:
        scheduler: Does the work.
        tokenizer: The target's.
        config: The configuration, for what the server says of itself.
    """

    def __init__(self, scheduler: Scheduler, tokenizer: Tokenizer, config: SchedulerConfig) -> None:
        self._scheduler = scheduler
        self._tokenizer = tokenizer
        self._config = config
        self._arriving: dict[str, bool] = {}  # Request id to whether it was aborted meanwhile.

    async def Generate(  # noqa: N802  # the contract's name
        self, request: scheduler_pb2.GenerateRequest, context: grpc.aio.ServicerContext
    ) -> None:
        """Generates text; see the contract."""
        arrival_s = time.monotonic()
        remaining_s = context.time_remaining()
        deadline_s = None if remaining_s is None else arrival_s + remaining_s
        try:
            async with asyncio.timeout(remaining_s):
                await self._generate(request, context, arrival_s, deadline_s)
        except TimeoutError:
            raise DeadlineExceeded(
                f"the request did not finish within its deadline of {remaining_s:.3f} s; "
                "allow more time or ask for fewer tokens"
            ) from None

    async def Abort(  # noqa: N802
        self, request: scheduler_pb2.AbortRequest, context: grpc.aio.ServicerContext
    ) -> scheduler_pb2.AbortResponse:
        """Ends a request by name."""
        if not request.request_id:
            raise InvalidRequest("request_id is empty; name the request to abort", field="request_id")
        if request.request_id in self._arriving:
            self._arriving[request.request_id] = True
            return scheduler_pb2.AbortResponse(found=True)
        return scheduler_pb2.AbortResponse(found=self._scheduler.abort(request.request_id))

    async def GetServerInfo(  # noqa: N802
        self, request: scheduler_pb2.GetServerInfoRequest, context: grpc.aio.ServicerContext
    ) -> scheduler_pb2.GetServerInfoResponse:
        """What is served."""
        scheduler, limits = self._scheduler, self._config.limits
        target, draft = scheduler.target, scheduler.pool.draft_info
        return scheduler_pb2.GetServerInfoResponse(
            version=spearhead.__version__,
            protocol_version=spearhead.PROTOCOL_VERSION,
            target=target.model,
            variant=scheduler.pool.variant or target.variant,
            draft=None if draft is None else draft.model,
            draft_status=scheduler.pool.draft_status,
            context_length=target.model.context_length,
            max_running_requests=limits.max_running_requests * max(1, len(scheduler.pool.ready_engines)),
            max_waiting_requests=limits.max_waiting_requests,
            max_draft_tokens=limits.max_draft_tokens,
        )

    async def GetLoad(  # noqa: N802
        self, request: scheduler_pb2.GetLoadRequest, context: grpc.aio.ServicerContext
    ) -> scheduler_pb2.GetLoadResponse:
        """How busy the server is."""
        load = self._scheduler.load()
        return scheduler_pb2.GetLoadResponse(
            running_requests=load.running_requests,
            waiting_requests=load.waiting_requests,
            waiting_tokens=load.waiting_tokens,
            kv_cache_usage=load.kv_cache_usage,
            step_count=load.step_count,
            draining=load.draining,
        )

    async def _generate(
        self,
        message: scheduler_pb2.GenerateRequest,
        context: grpc.aio.ServicerContext,
        arrival_s: float,
        deadline_s: float | None,
    ) -> None:
        request_id, caller = message.request_id or uuid.uuid4().hex, current_caller()
        with self._arrival(request_id):
            spec = await self._intake(message, request_id, caller)
            request = self._scheduler.submit(
                spec,
                arrival_s=arrival_s,
                deadline_s=deadline_s,
                server_span=trace.get_current_span(),
                caller=caller,
            )
            if self._arriving[request_id]:
                self._scheduler.abort(request_id)
        try:
            await context.write(_started(spec))
            await self._deliver(request, context)
        finally:
            self._scheduler.cancel(request)

    @contextlib.contextmanager
    def _arrival(self, request_id: str) -> Iterator[None]:
        """Keeps an id while its request is checked, so that it is never taken twice."""
        if request_id in self._arriving or self._scheduler.requests.get(request_id) is not None:
            raise RequestExists(
                f"a request with request_id {request_id!r} runs already; use another one, or leave it empty",
                field="request_id",
            )
        self._arriving[request_id] = False
        try:
            yield
        finally:
            del self._arriving[request_id]

    async def _intake(
        self, message: scheduler_pb2.GenerateRequest, request_id: str, caller: Caller
    ) -> GenerationSpec:
        limits = self._scheduler.limits(caller)
        check_request(message, limits)
        self._scheduler.check_room(caller)
        prompt_token_ids = await self._tokenise(message)
        return resolve(
            message, prompt_token_ids, limits, request_id=request_id, random_seed=secrets.randbits(64)
        )

    async def _tokenise(self, message: scheduler_pb2.GenerateRequest) -> list[int]:
        match message.WhichOneof("input"):
            case "tokens":
                return list(message.tokens.token_ids)
            case "prompt":
                if len(message.prompt) <= SHORT_TEXT:
                    return self._tokenizer.encode(message.prompt)
                return await asyncio.to_thread(self._tokenizer.encode, message.prompt)
        chat = message.chat
        messages = [{"role": turn.role, "content": turn.content} for turn in chat.messages]
        prompt = chat.add_generation_prompt if chat.HasField("add_generation_prompt") else True
        return await asyncio.to_thread(self._tokenizer.encode_chat, messages, prompt)

    async def _deliver(self, request: Request, context: grpc.aio.ServicerContext) -> None:
        try:
            while True:
                event = await request.channel.take()
                if isinstance(event, Summary):
                    await context.write(_finished(event))
                    return
                written_s = time.monotonic()
                try:
                    await context.write(_delta(event))
                finally:
                    request.trace.delivered(written_s, time.monotonic())
        finally:
            request.trace.delivery_ended()


def _started(spec: GenerationSpec) -> scheduler_pb2.GenerateResponse:
    started = scheduler_pb2.GenerationStarted(
        request_id=spec.request_id, prompt_token_count=len(spec.prompt_token_ids), seed=spec.sampling.seed
    )
    return scheduler_pb2.GenerateResponse(started=started)


def _delta(delta: Delta) -> scheduler_pb2.GenerateResponse:
    return scheduler_pb2.GenerateResponse(
        delta=scheduler_pb2.GenerationDelta(
            token_ids=delta.token_ids, text="".join(delta.texts), logprobs=delta.logprobs
        )
    )


def _finished(summary: Summary) -> scheduler_pb2.GenerateResponse:
    finish, first_s = summary.finish, summary.time_to_first_token_s
    return scheduler_pb2.GenerateResponse(
        finished=scheduler_pb2.GenerationFinished(
            reason=_FINISH_REASONS[finish.reason],
            stop_string=finish.stop_string,
            stop_token_id=finish.stop_token_id,
            usage=scheduler_pb2.Usage(
                prompt_tokens=summary.prompt_tokens,
                completion_tokens=summary.completion_tokens,
                cached_tokens=summary.cached_tokens,
            ),
            speculation=scheduler_pb2.SpeculationStats(
                drafted_tokens=summary.drafted_tokens,
                accepted_tokens=summary.accepted_tokens,
                rounds=summary.rounds,
                active=summary.speculation_active,
                inactive_reason=summary.speculation_inactive,
            ),
            timings=scheduler_pb2.Timings(
                e2e=_duration(summary.e2e_s),
                time_to_first_token=None if first_s is None else _duration(first_s),
                queue=_duration(summary.queue_s),
                prefill=_duration(summary.prefill_s),
                draft=_duration(summary.draft_s),
                verify=_duration(summary.verify_s),
                network=_duration(summary.network_s),
                scheduler=_duration(summary.scheduler_s),
                preemptions=summary.preemptions,
            ),
        )
    )


def _duration(seconds: float) -> Duration:
    result = Duration()
    result.FromNanoseconds(int(seconds * 1e9))
    return result
