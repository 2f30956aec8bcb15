"""What the scheduler knows of each kind of worker: its handshake and its stream."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import grpc

from scheduler_service.latency_table import ModelProfile
from spearhead import PROTOCOL_VERSION
from spearhead.errors import DeadlineExceeded, ModelMismatch
from spearhead.rpc import TargetConfig, create_channel, error_from_rpc
from spearhead.v1 import draft_pb2, draft_pb2_grpc, types_pb2, verify_pb2, verify_pb2_grpc

InfoT = TypeVar("InfoT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a request depends on while it lives.

    Attributes:
        revision: Digest of the weights.
        context_length: Longest sequence, tokens.
        page_size: Tokens in a KV page.
        page_count: KV pages in all.
    """

    revision: str
    context_length: int
    page_size: int
    page_count: int

    @property
    def longest(self) -> int:
        """Longest sequence that context and KV pages can hold, tokens."""
        return min(self.context_length, self.page_size * self.page_count)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyInfo:
    """What the verify service said in the handshake."""

    model: types_pb2.ModelInfo
    variant: str

    @property
    def target(self) -> Target:
        """The part that requests depend on."""
        model = self.model
        return Target(
            revision=model.revision,
            context_length=model.context_length,
            page_size=model.kv_page_size,
            page_count=model.kv_page_count,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftInfo:
    """What the draft service said in the handshake."""

    model: types_pb2.ModelInfo
    max_draft_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection(Generic[InfoT]):
    """A worker after its handshake.

    Attributes:
        info: What it said.
        channel: To be closed by the owner.
        call: Its streaming RPC, fresh.
    """

    info: InfoT
    channel: grpc.aio.Channel
    call: grpc.aio.StreamStreamCall


class _Peer:
    """What connecting to either kind of worker has in common; arguments as for :class:`VerifyPeer`."""

    kind: str

    def __init__(
        self, choose: Callable[[], TargetConfig], tokenizer_hash: str, profile: ModelProfile | None
    ) -> None:
        self.address = ""
        self._choose = choose
        self._tokenizer_hash = tokenizer_hash
        self._profile = profile

    @property
    def name(self) -> str:
        """The worker, for messages."""
        return f"{self.kind} at {self.address}" if self.address else self.kind

    @contextlib.asynccontextmanager
    async def _handshake(self) -> AsyncIterator[grpc.aio.Channel]:
        """A channel that outlives a handshake without error."""
        target = self._choose()
        self.address = target.address
        channel = create_channel(target)
        try:
            yield channel
        except BaseException as error:
            await channel.close()
            if isinstance(error, grpc.aio.AioRpcError):
                raise error_from_rpc(error, "it") from error
            raise

    async def _open(
        self, method: Callable[[], grpc.aio.StreamStreamCall], timeout_s: float
    ) -> grpc.aio.StreamStreamCall:
        """The stream, once the worker has it.

        Before that, gRPC may carry it over to the process that is started next, which nobody has asked
        what it serves. Afterwards it ends with its process.

        Raises:
            DeadlineExceeded: The worker does not take it in time.
        """
        call = method()
        try:
            async with asyncio.timeout(timeout_s):
                await call.initial_metadata()
        except TimeoutError as error:
            raise DeadlineExceeded(
                f"it did not take the stream within {timeout_s:g} s; it hangs, or is of another release"
            ) from error
        return call

    def _check(self, info: types_pb2.ModelInfo) -> None:
        _check_agreement(self.name, info, self._tokenizer_hash, self._profile)


class VerifyPeer(_Peer):
    """Connects to a verify service.

    Args:
        choose: Where it is, asked before each attempt to connect; raises NotReady when that is unknown.
        tokenizer_hash: Of the scheduler's own tokenizer, which the service's must equal.
        profile: Latencies that were measured on it and must belong to it; ``None`` = none are used.
    """

    kind = "verify service"

    async def connect(self, timeout_s: float) -> Connection[VerifyInfo]:
        """Opens the stream over a channel of its own, then shakes hands.

        Raises:
            ModelMismatch: Another contract or tokenizer.
            ConfigError: The latency table was measured on something else.
            SpearheadError: The service does not answer, or refuses.
        """
        request = verify_pb2.VerifyServiceGetModelInfoRequest(protocol_version=PROTOCOL_VERSION)
        async with self._handshake() as channel:
            stub = verify_pb2_grpc.VerifyServiceStub(channel)  # type: ignore[no-untyped-call]
            call = await self._open(stub.Step, timeout_s)
            reply = await stub.GetModelInfo(request, timeout=timeout_s)
            self._check(reply.info)
        info = VerifyInfo(model=reply.info, variant=reply.variant)
        return Connection(info=info, channel=channel, call=call)


class DraftPeer(_Peer):
    """Connects to a draft service; arguments as for :class:`VerifyPeer`."""

    kind = "draft service"

    async def connect(self, timeout_s: float) -> Connection[DraftInfo]:
        """Opens the stream over its own channel, then shakes hands; errors as for :class:`VerifyPeer`."""
        request = draft_pb2.DraftServiceGetModelInfoRequest(protocol_version=PROTOCOL_VERSION)
        async with self._handshake() as channel:
            stub = draft_pb2_grpc.DraftServiceStub(channel)  # type: ignore[no-untyped-call]
            call = await self._open(stub.Propose, timeout_s)
            reply = await stub.GetModelInfo(request, timeout=timeout_s)
            self._check(reply.info)
        info = DraftInfo(model=reply.info, max_draft_tokens=reply.max_draft_tokens)
        return Connection(info=info, channel=channel, call=call)


def _check_agreement(
    name: str, info: types_pb2.ModelInfo, tokenizer_hash: str, profile: ModelProfile | None
) -> None:
    if info.protocol_version != PROTOCOL_VERSION:
        raise ModelMismatch(
            f"{name} speaks protocol version {info.protocol_version}, this scheduler {PROTOCOL_VERSION}; "
            "run services of one release"
        )
    if info.tokenizer_hash != tokenizer_hash:
        raise ModelMismatch(
            f"{name} has tokenizer {info.tokenizer_hash}, this scheduler {tokenizer_hash}; "
            "serve models that share one tokenizer, or correct model.tokenizer"
        )
    if profile is not None:
        profile.require_match(name, device=info.device, revision=info.revision)
