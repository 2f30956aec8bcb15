"""The synchronous client: the same surface as the asynchronous one, over gRPC's own threads.

It uses a synchronous channel of its own instead of an event loop in a thread, since ``grpc.aio``
supports one event loop a process and a program may run its own.
"""

import time
from collections.abc import Callable, Generator
from types import TracebackType
from typing import Any, TypeVar, Unpack

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from spearhead.client.attempts import Attempts
from spearhead.client.channel import create_sync_channel
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
from spearhead.rpc import TargetConfig
from spearhead.rpc.auth import TokenFile
from spearhead.v1 import scheduler_pb2, scheduler_pb2_grpc

Response = TypeVar("Response")


class Client:
    """Talks to one scheduler service over one channel; may be shared by threads.

    Args:
        target: "host:port", "unix:/path", or a configuration with TLS and token files.
        retry: When calls are repeated.
    """

    def __init__(
        self, target: str | TargetConfig = DEFAULT_ADDRESS, *, retry: RetryPolicy | None = None
    ) -> None:
        self._target = target_of(target)
        self._retry = retry or RetryPolicy()
        self._tokens = TokenFile(self._target.token_file) if self._target.token_file else None
        self._channel = create_sync_channel(self._target)
        self._stub = scheduler_pb2_grpc.SchedulerServiceStub(self._channel)  # type: ignore[no-untyped-call]
        self._health = health_pb2_grpc.HealthStub(self._channel)

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Cancels what still runs and closes the channel."""
        self._channel.close()

    def generate(
        self, prompt: str | None = None, **options: Unpack[RequestOptions]
    ) -> Generator[Event, None, None]:
        """Streams an answer: one ``Started``, ``Delta`` events, one ``Finished``.

        Closing the returned generator, or leaving the loop over it, cancels the request on the server.

        Args:
            prompt: Text to continue; or give ``messages`` or ``token_ids``.
            **options: See :class:`~spearhead.client.RequestOptions`.

        Raises:
            SpearheadError: The class that the server raised; while iterating, except for a request
                that cannot be built, which raises ``InvalidRequest`` at once.
        """
        request = request_to_proto(prompt, options)
        return self._stream(request, options.get("timeout_s", 600.0), call_metadata(options))

    def generate_text(self, prompt: str | None = None, **options: Unpack[RequestOptions]) -> GenerationResult:
        """The whole answer at once; arguments and errors as for :meth:`generate`."""
        builder = ResultBuilder()
        for event in self.generate(prompt, **options):
            builder.add(event)
        return builder.result()

    def abort(self, request_id: str, *, timeout_s: float = 10.0) -> bool:
        """Ends a request with finish reason "abort"; false when there is no such request."""
        request = scheduler_pb2.AbortRequest(request_id=request_id)
        return bool(self._unary(self._stub.Abort, request, timeout_s).found)

    def server_info(self, *, timeout_s: float = 10.0) -> ServerInfo:
        """What the server serves and its limits."""
        request = scheduler_pb2.GetServerInfoRequest()
        return server_info_from_proto(self._unary(self._stub.GetServerInfo, request, timeout_s))

    def load(self, *, timeout_s: float = 10.0) -> Load:
        """How busy the server is."""
        request = scheduler_pb2.GetLoadRequest()
        return load_from_proto(self._unary(self._stub.GetLoad, request, timeout_s))

    def wait_ready(self, timeout_s: float = 60.0, *, poll_interval_s: float = 0.1) -> None:
        """Returns when the server takes requests.

        Raises:
            NotReady: It does not within ``timeout_s``; the text says what was seen last.
        """
        deadline_s = time.monotonic() + timeout_s
        request = health_pb2.HealthCheckRequest(service="readiness")
        while True:
            try:
                seen = self._health.Check(request, timeout=5.0).status
                if seen == health_pb2.HealthCheckResponse.SERVING:
                    return
                last = "it answers that it is not ready"
            except grpc.RpcError as error:
                last = str(error.details())
            if time.monotonic() + poll_interval_s > deadline_s:
                raise not_ready(self._target.address, timeout_s, last)
            time.sleep(poll_interval_s)

    def _stream(
        self, request: scheduler_pb2.GenerateRequest, timeout_s: float, metadata: Metadata
    ) -> Generator[Event, None, None]:
        attempts = Attempts(self._target.address, self._retry, timeout_s)
        event: Event | None = None
        while True:
            call = self._stub.Generate(request, timeout=attempts.start(), metadata=self._authorised(metadata))
            try:
                for response in call:
                    event = event_from_proto(response)
                    if attempts.arrived(event, request):
                        yield event
                if not isinstance(event, Finished):
                    raise incomplete_answer(self._target.address)
                return
            except grpc.RpcError as failure:
                time.sleep(attempts.delay_after(failure))
            finally:
                call.cancel()

    def _authorised(self, metadata: Metadata = ()) -> Metadata:
        return (*metadata, ("authorization", f"Bearer {self._tokens.first()}")) if self._tokens else metadata

    def _unary(self, method: Callable[..., Response], request: Any, timeout_s: float) -> Response:
        attempts = Attempts(self._target.address, self._retry, timeout_s)
        while True:
            try:
                return method(request, timeout=attempts.start(), metadata=self._authorised())
            except grpc.RpcError as failure:
                time.sleep(attempts.delay_after(failure))
