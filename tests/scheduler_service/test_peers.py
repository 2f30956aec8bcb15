"""A handshake speaks of the process that has the stream, and of no other."""

from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from scheduler_service.peers import VerifyPeer
from spearhead.errors import DeadlineExceeded
from spearhead.rpc import TargetConfig
from spearhead.tokenizer import Tokenizer
from tests.scheduler_service.fake_workers import FakeVerify
from tests.scheduler_service.stack import WorkerServer
from tests.scheduler_service.toy_model import ToyModel


class LateVerify(FakeVerify):
    """Knows how many streams there were when somebody asked what it serves."""

    streams_at_handshake = -1

    async def GetModelInfo(self, request, context):  # noqa: N802
        self.streams_at_handshake = self.connection_count
        return await super().GetModelInfo(request, context)


@pytest.fixture
async def server(tokenizer: Tokenizer, socket_folder: Path) -> AsyncIterator[WorkerServer]:
    worker = LateVerify(
        ToyModel(tokenizer.eos_token_ids), tokenizer_hash=tokenizer.hash, vocab_size=tokenizer.vocab_size
    )
    server = WorkerServer(worker, socket_folder / "v.sock")
    await server.start()
    yield server
    await server.kill()


def peer(server: WorkerServer) -> VerifyPeer:
    return VerifyPeer(lambda: TargetConfig(address=server.address), server.worker.tokenizer_hash, None)


async def test_the_handshake_comes_after_the_stream(server: WorkerServer) -> None:
    connection = await peer(server).connect(20.0)
    async with connection.channel:
        assert server.worker.streams_at_handshake == 1


async def test_a_stream_is_never_carried_over_to_the_next_process(server: WorkerServer) -> None:
    for _ in range(20):
        connection = await peer(server).connect(20.0)
        async with connection.channel:
            await server.kill()
            await server.start()
            assert await connection.call.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_worker_that_does_not_take_the_stream_is_not_connected(server: WorkerServer) -> None:
    server.worker.takes_streams.clear()
    with pytest.raises(DeadlineExceeded, match=r"it did not take the stream within 0\.2 s"):
        await peer(server).connect(0.2)
