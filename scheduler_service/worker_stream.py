"""One bidirectional stream to one worker: a request message out, the reply with its step id back."""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import grpc

from spearhead.errors import DeadlineExceeded, NotReady
from spearhead.rpc import error_from_rpc
from spearhead.v1 import types_pb2

_logger = logging.getLogger("spearhead.scheduler")


class StepMessage(Protocol):
    """What every message on a worker stream has."""

    step_id: int


class StepReply(StepMessage, Protocol):
    """What every reply on a worker stream has."""

    @property
    def timing(self) -> types_pb2.WorkerTiming:
        """Where the worker spent the time."""


RequestT = TypeVar("RequestT", bound=StepMessage)
ReplyT = TypeVar("ReplyT", bound=StepReply)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange(Generic[ReplyT]):
    """One round trip.

    Attributes:
        reply: The worker's answer.
        start_s: Monotonic time when the message was handed over, seconds.
        end_s: Monotonic time of the reply.
        loop_lag_s: Of this, the time from reading the reply until the caller was awake.
    """

    reply: ReplyT
    start_s: float
    end_s: float
    loop_lag_s: float

    @property
    def round_trip_s(self) -> float:
        """From message to reply, seconds."""
        return self.end_s - self.start_s

    @property
    def worker_s(self) -> float:
        """The worker's own time, seconds; never more than the round trip."""
        return min(self.round_trip_s, self.reply.timing.total_ns / 1e9)

    @property
    def network_s(self) -> float:
        """Transport and serialisation, seconds."""
        return self.round_trip_s - self.worker_s


class WorkerStream(Generic[RequestT, ReplyT]):
    """The open stream.

    Args:
        name: The worker, for messages: ``verify service at 10.0.0.1:7000``.
        call: The fresh call of the worker's streaming RPC.
        on_stale: Called for a reply that nobody waits for any more.

    Attributes:
        broken: Why the stream is of no more use; empty = it works.
    """

    def __init__(self, name: str, call: grpc.aio.StreamStreamCall, *, on_stale: Callable[[], None]) -> None:
        self._name = name
        self._call = call
        self._on_stale = on_stale
        self._waiting: dict[int, asyncio.Future[tuple[ReplyT, float]]] = {}
        self._write_lock = asyncio.Lock()
        self.broken = ""
        self._reader = asyncio.create_task(self._read_replies())

    async def exchange(self, message: RequestT, timeout_s: float) -> Exchange[ReplyT]:
        """Sends one message and waits for its reply.

        Raises:
            DeadlineExceeded: No reply in time. The stream stays open; a late reply is dropped.
            NotReady: The stream is broken.
        """
        if self.broken:
            raise self._error()
        reply: asyncio.Future[tuple[ReplyT, float]] = asyncio.get_running_loop().create_future()
        self._waiting[message.step_id] = reply
        start_s = time.monotonic()
        try:
            async with asyncio.timeout(timeout_s):
                async with self._write_lock:
                    await self._call.write(message)
                answer, read_s = await reply
        except TimeoutError:
            raise DeadlineExceeded(
                f"{self._name} did not answer step {message.step_id} within {timeout_s:g} s"
            ) from None
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, asyncio.CancelledError) as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise
            # The reader learns why the call ended; a failed write only knows that it did.
            await asyncio.wait([self._reader])
            raise self._error() from error
        finally:
            del self._waiting[message.step_id]
        end_s = time.monotonic()
        return Exchange(reply=answer, start_s=start_s, end_s=end_s, loop_lag_s=end_s - read_s)

    async def wait_broken(self) -> str:
        """Waits until the stream ends and says why."""
        await asyncio.wait([self._reader])
        return self.broken

    async def close(self) -> None:
        """Ends the stream; the worker frees its sequences."""
        self._call.cancel()
        await asyncio.wait([self._reader])

    def _error(self) -> NotReady:
        return NotReady(f"{self._name} is lost: {self.broken}")

    async def _read_replies(self) -> None:
        reason = "the connection was closed here"
        try:
            while (reply := await self._call.read()) is not grpc.aio.EOF:
                waiting = self._waiting.get(reply.step_id)
                if waiting is None or waiting.done():
                    self._on_stale()
                else:
                    waiting.set_result((reply, time.monotonic()))
            code, details = await self._call.code(), await self._call.details()
            reason = f"it ended the stream: {code.name} {details or ''}".rstrip()
        except grpc.aio.AioRpcError as error:
            reason = error_from_rpc(error, "it").message
        except Exception as error:  # Not foreseen: whoever waits must learn of it, and so must the log.
            _logger.exception("reading from %s failed", self._name)
            reason = f"reading its replies failed: {error!r}"
        except asyncio.CancelledError:
            pass  # By close(), or with the whole event loop.
        finally:
            self.broken = reason
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(self._error())
