"""The asynchronous client."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from types import TracebackType
from typing import Any, TypeVar, Unpack

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from spearhead.client.attempts import Attempts
from spearhead.client.convert import (
    event_from_proto,
    load_from_proto,
    request_to_proto,
    server_info_from_proto,
)
from spearhead.client.events import Event, Finished, GenerationResult, ResultBuilder
from spearhead.client.request import RequestOptions
from spearhead.client.retry import RetryPolicy
from spearhead.client.server import Load, ServerInfo
from spearhead.client.target import (
    DEFAULT_ADDRESS,
    Metadata,
    call_metadata,
    incomplete_answer,
    not_ready,
    target_of,
)
from spearhead.errors import Cancelled
from spearhead.rpc import TargetConfig, create_channel
from spearhead.v1 import scheduler_pb2, scheduler_pb2_grpc

Response = TypeVar("Response")


class AsyncClient:
    """Talks to one scheduler service over one channel; use it from one event loop.

    Args:
        target: "host:port", "unix:/path", or a configuration with TLS and token files.
        retry: When calls are repeated.
    """

    def __init__(
        self, target: str | TargetConfig = DEFAULT_ADDRESS, *, retry: RetryPolicy | None = None
    ) -> None:
        self._target = target_of(target)
        self._retry = retry or RetryPolicy()
        self._channel = create_channel(self._target)
        self._stub = scheduler_pb2_grpc.SchedulerServiceStub(self._channel)  # type: ignore[no-untyped-call]
        self._health = health_pb2_grpc.HealthStub(self._channel)

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Cancels what still runs and closes the channel."""
        await self._channel.close()

    def generate(
        self, prompt: str | None = None, **options: Unpack[RequestOptions]
    ) -> AsyncGenerator[Event, None]:
        """Streams an answer: one ``Started``, ``Delta`` events, one ``Finished``.

        Closing the returned generator cancels the request on the server.

        Args:
            prompt: Text to continue; or give ``messages`` or ``token_ids``.
            **options: See :class:`~spearhead.client.RequestOptions`.

        Raises:
            SpearheadError: The class that the server raised; while iterating, except for a request
                that cannot be built, which raises ``InvalidRequest`` at once.
        """
        request = request_to_proto(prompt, options)
        return self._stream(request, options.get("timeout_s", 600.0), call_metadata(options))

    async def generate_text(
        self, prompt: str | None = None, **options: Unpack[RequestOptions]
    ) -> GenerationResult:
        """The whole answer at once; arguments and errors as for :meth:`generate`."""
        builder = ResultBuilder()
        async for event in self.generate(prompt, **options):
            builder.add(event)
        return builder.result()

    async def abort(self, request_id: str, *, timeout_s: float = 10.0) -> bool:
        """Ends a request with finish reason "abort"; false when there is no such request."""
        request = scheduler_pb2.AbortRequest(request_id=request_id)
        return bool((await self._unary(self._stub.Abort, request, timeout_s)).found)

    async def server_info(self, *, timeout_s: float = 10.0) -> ServerInfo:
        """What the server serves and its limits."""
        request = scheduler_pb2.GetServerInfoRequest()
        return server_info_from_proto(await self._unary(self._stub.GetServerInfo, request, timeout_s))

    async def load(self, *, timeout_s: float = 10.0) -> Load:
        """How busy the server is."""
        request = scheduler_pb2.GetLoadRequest()
        return load_from_proto(await self._unary(self._stub.GetLoad, request, timeout_s))

    async def wait_ready(self, timeout_s: float = 60.0, *, poll_interval_s: float = 0.1) -> None:
        """Returns when the server takes requests.

        Raises:
            NotReady: It does not within ``timeout_s``; the text says what was seen last.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        request = health_pb2.HealthCheckRequest(service="readiness")
        while True:
            try:
                seen = (await self._health.Check(request, timeout=5.0)).status
                if seen == health_pb2.HealthCheckResponse.SERVING:
                    return
                last = "it answers that it is not ready"
            except grpc.RpcError as error:
                last = str(error.details())
            if loop.time() + poll_interval_s > deadline_s:
                raise not_ready(self._target.address, timeout_s, last)
            await asyncio.sleep(poll_interval_s)

    async def _stream(
        self, request: scheduler_pb2.GenerateRequest, timeout_s: float, metadata: Metadata
    ) -> AsyncGenerator[Event, None]:
        attempts = Attempts(self._target.address, self._retry, timeout_s)
        event: Event | None = None
        while True:
            call = self._stub.Generate(request, timeout=attempts.start(), metadata=metadata)
            try:
                async for response in call:
                    event = event_from_proto(response)
                    if attempts.arrived(event, request):
                        yield event
                if not isinstance(event, Finished):
                    raise incomplete_answer(self._target.address)
                return
            except grpc.RpcError as failure:
                await asyncio.sleep(attempts.delay_after(failure))
            except asyncio.CancelledError:
                # grpc.aio raises this too when close() cancels the call; nobody cancelled our task then.
                if _task_cancelled():
                    raise
                raise Cancelled(f"the client of {self._target.address} was closed") from None
            finally:
                call.cancel()

    async def _unary(
        self, method: Callable[..., Awaitable[Response]], request: Any, timeout_s: float
    ) -> Response:
        attempts = Attempts(self._target.address, self._retry, timeout_s)
        while True:
            try:
                return await method(request, timeout=attempts.start())
            except grpc.RpcError as failure:
                await asyncio.sleep(attempts.delay_after(failure))


def _task_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
