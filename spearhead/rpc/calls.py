"""Layers around a service's handlers, whatever their kind: unary or streaming, generator or read/write.

gRPC's own server interceptors must wrap eight forms of handler. Here a layer is one coroutine around "the
call", since every handler is first turned into a coroutine that runs to the call's end. So the end of a
cancelled stream, which a generator left at its ``yield`` never sees, is seen by every layer, and the
generator is closed at once instead of at the next garbage collection.
"""

import contextlib
import inspect
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from spearhead.errors import InvalidRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One RPC, as layers see it.

    Attributes:
        method: ``package.Service/Method``.
        metadata: The caller's metadata, texts only; of a repeated key the last one.
        context: gRPC's own view.
    """

    method: str
    metadata: Mapping[str, str]
    context: grpc.aio.ServicerContext

    @property
    def service(self) -> str:
        """``package.Service``."""
        return self.method.partition("/")[0]


Proceed = Callable[[], Awaitable[Any]]
"""Runs the rest of the call to its end: the response of a unary call, ``None`` of a streamed one."""
Layer = Callable[[Call, Proceed], Awaitable[Any]]
_Behaviour = Callable[[Any, Any], Awaitable[Any]]


class LayerInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # gRPC ships no types
    """Puts layers around every handler of a server, the first one outermost."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        """Takes the layers.

        Args:
            layers: Outermost first.
        """
        self._layers = tuple(layers)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler:
        """The handler of the call with all layers around it; ``None`` for a method that does not exist."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method = handler_call_details.method.removeprefix("/")
        metadata = {k: v for k, v in handler_call_details.invocation_metadata if isinstance(v, str)}
        make, behaviour = _coroutine_form(handler)
        # A message that gRPC cannot parse itself would be answered UNKNOWN, past every layer.
        parse = None if handler.request_streaming else handler.request_deserializer

        async def layered(request: Any, context: grpc.aio.ServicerContext) -> Any:
            call = Call(method=method, metadata=metadata, context=context)

            def innermost() -> Awaitable[Any]:
                if handler.request_streaming:
                    return behaviour(_Requests(request, context), context)
                return behaviour(_parsed(request, parse), context)

            return await _run(self._layers, call, innermost)

        return make(
            layered,
            request_deserializer=handler.request_deserializer if handler.request_streaming else None,
            response_serializer=handler.response_serializer,
        )


def _parsed(data: bytes, parse: Callable[[bytes], Any] | None) -> Any:
    if parse is None:
        return data
    try:
        return parse(data)
    except Exception as error:  # what a deserialiser raises depends on protobuf's implementation
        raise InvalidRequest(
            f"the request of {len(data)} bytes is no valid message ({error}); strings must be UTF-8, and "
            "both sides must use the same version of the contract"
        ) from error


async def _run(layers: tuple[Layer, ...], call: Call, innermost: Proceed) -> Any:
    if not layers:
        return await innermost()
    return await layers[0](call, lambda: _run(layers[1:], call, innermost))


def _coroutine_form(handler: grpc.RpcMethodHandler) -> tuple[Callable[..., Any], _Behaviour]:
    if handler.request_streaming and handler.response_streaming:
        return grpc.stream_stream_rpc_method_handler, _as_coroutine(handler.stream_stream)
    if handler.request_streaming:
        return grpc.stream_unary_rpc_method_handler, _as_coroutine(handler.stream_unary)
    if handler.response_streaming:
        return grpc.unary_stream_rpc_method_handler, _as_coroutine(handler.unary_stream)
    return grpc.unary_unary_rpc_method_handler, _as_coroutine(handler.unary_unary)


def _as_coroutine(behaviour: Callable[[Any, Any], Any]) -> _Behaviour:
    if inspect.iscoroutinefunction(behaviour):
        return behaviour
    if not inspect.isasyncgenfunction(behaviour):
        return _unimplemented  # generated base classes leave methods without a handler as plain functions

    async def write_all(request: Any, context: grpc.aio.ServicerContext) -> None:
        responses: AsyncIterator[Any]
        async with contextlib.aclosing(behaviour(request, context)) as responses:
            async for response in responses:
                await context.write(response)

    return write_all


class _Requests:
    """The caller's stream of requests, which ends only if the caller ended it.

    To a gRPC handler, a caller who cancels mostly looks like one who has sent everything: the failed read
    arrives first and the cancellation after it. A read past the end arrives after both.
    """

    def __init__(self, received: AsyncIterable[Any], context: grpc.aio.ServicerContext) -> None:
        self._received = received
        self._iterator: AsyncIterator[Any] | None = None
        self._context = context

    def __aiter__(self) -> "_Requests":
        return self

    async def __anext__(self) -> Any:
        if self._iterator is None:  # made at the first use: gRPC complains of one that is never used
            self._iterator = aiter(self._received)
        try:
            return await anext(self._iterator)
        except StopAsyncIteration:
            await self._context.read()
            raise


async def _unimplemented(request: Any, context: grpc.aio.ServicerContext) -> None:
    await context.abort(grpc.StatusCode.UNIMPLEMENTED, "this server has no async handler for this method")
