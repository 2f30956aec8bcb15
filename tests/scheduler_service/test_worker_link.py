"""The connection to a worker: replies find their senders, and a lost worker is found again."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from scheduler_service.peers import VerifyPeer
from scheduler_service.verifying import VerifyLink
from scheduler_service.worker_link import LinkState, WorkerLink
from scheduler_service.worker_stream import WorkerStream
from spearhead.errors import DeadlineExceeded, NotReady
from spearhead.rpc import TargetConfig
from spearhead.tokenizer import Tokenizer
from spearhead.v1 import verify_pb2
from tests.scheduler_service.fake_workers import FakeVerify
from tests.scheduler_service.latencies import memory_bound
from tests.scheduler_service.stack import WorkerServer
from tests.scheduler_service.toy_model import ToyModel


class Harness:
    """One link and one fake worker."""

    def __init__(self, folder: Path, worker: FakeVerify, tokenizer_hash: str, *, with_table: bool) -> None:
        self.worker = worker
        self.server = WorkerServer(worker, folder / "v.sock")
        self.changed = asyncio.Event()
        self.stale_count = 0
        profile = memory_bound().target if with_table else None
        self.link: VerifyLink = WorkerLink(
            VerifyPeer(lambda: TargetConfig(address=self.server.address), tokenizer_hash, profile),
            connect_timeout_s=5.0,
            backoff_s=(0.01, 0.05),
            on_change=self.changed.set,
            on_stale=self._count_stale,
        )

    async def state(self, state: LinkState) -> None:
        async with asyncio.timeout(20):
            while self.link.state is not state:
                self.changed.clear()
                await self.changed.wait()

    async def ping(self, step_id: int, timeout_s: float = 20.0) -> int:
        exchange = await self.link.exchange(verify_pb2.StepRequest(step_id=step_id), timeout_s)
        assert 0 <= exchange.network_s <= exchange.round_trip_s
        return exchange.reply.step_id

    def _count_stale(self) -> None:
        self.stale_count += 1


@contextlib.asynccontextmanager
async def running(
    folder: Path,
    tokenizer: Tokenizer,
    *,
    worker_hash: str = "",
    revision: str = "sha256:1",
    table: bool = False,
) -> AsyncIterator[Harness]:
    worker = FakeVerify(
        ToyModel([1]),
        tokenizer_hash=worker_hash or tokenizer.hash,
        vocab_size=tokenizer.vocab_size,
        revision=revision,
    )
    harness = Harness(folder, worker, tokenizer.hash, with_table=table)
    await harness.server.start()
    task = asyncio.create_task(harness.link.run())
    try:
        yield harness
    finally:
        task.cancel()
        await asyncio.wait([task])
        await harness.server.kill()


async def test_replies_find_their_senders(socket_folder: Path, tokenizer: Tokenizer) -> None:
    async with running(socket_folder, tokenizer) as harness:
        await harness.state(LinkState.READY)
        assert await asyncio.gather(*(harness.ping(n) for n in range(1, 30))) == list(range(1, 30))


async def test_a_late_reply_is_dropped_and_counted_and_the_stream_goes_on(
    socket_folder: Path, tokenizer: Tokenizer
) -> None:
    async with running(socket_folder, tokenizer) as harness:
        await harness.state(LinkState.READY)
        harness.worker.gate.clear()
        with pytest.raises(DeadlineExceeded, match=r"did not answer step 1 within 0\.05 s"):
            await harness.ping(1, timeout_s=0.05)
        harness.worker.gate.set()
        assert await harness.ping(2) == 2
        assert harness.stale_count == 1
        assert harness.link.session == 1


async def test_a_lost_worker_fails_what_waits_for_it_and_says_so(
    socket_folder: Path, tokenizer: Tokenizer
) -> None:
    async with running(socket_folder, tokenizer) as harness:
        await harness.state(LinkState.READY)
        harness.worker.gate.clear()
        waiting = asyncio.create_task(harness.ping(1))
        await harness.worker.arrived.wait()
        await harness.server.kill()
        with pytest.raises(NotReady, match=harness.server.address):
            await waiting
        assert harness.link.state is LinkState.LOST
        assert harness.link.status.startswith("lost: ")
        with pytest.raises(NotReady, match="is lost: "):
            await harness.ping(2)


async def test_a_worker_that_is_back_is_a_new_session(socket_folder: Path, tokenizer: Tokenizer) -> None:
    async with running(socket_folder, tokenizer) as harness:
        for session in (1, 2, 3):
            await harness.state(LinkState.READY)
            assert harness.link.session == session
            assert await harness.ping(session) == session
            await harness.server.kill()
            await harness.state(LinkState.LOST)
            await harness.server.start()
        harness.worker.gate.set()


async def test_a_dropped_connection_is_made_anew(socket_folder: Path, tokenizer: Tokenizer) -> None:
    async with running(socket_folder, tokenizer) as harness:
        await harness.state(LinkState.READY)
        await harness.link.drop("too slow")
        assert harness.link.status == "lost: too slow"
        await harness.state(LinkState.READY)
        assert harness.link.session == 2
        assert await harness.ping(5) == 5


async def test_another_tokenizer_is_refused_with_both_hashes(
    socket_folder: Path, tokenizer: Tokenizer
) -> None:
    async with running(socket_folder, tokenizer, worker_hash="sha256:other") as harness:
        await harness.state(LinkState.REFUSED)
        assert "sha256:other" in harness.link.detail
        assert tokenizer.hash in harness.link.detail
        assert not harness.link.ready
        harness.worker.tokenizer_hash = tokenizer.hash
        await harness.state(LinkState.READY)


async def test_a_latency_table_of_another_model_is_refused(socket_folder: Path, tokenizer: Tokenizer) -> None:
    async with running(socket_folder, tokenizer, revision="sha256:2", table=True) as harness:
        await harness.state(LinkState.REFUSED)
        assert "latency table" in harness.link.detail


async def test_a_worker_that_comes_late_is_found(socket_folder: Path, tokenizer: Tokenizer) -> None:
    async with running(socket_folder, tokenizer) as harness:
        await harness.server.kill()
        await harness.state(LinkState.LOST)
        await harness.server.start()
        await harness.state(LinkState.READY)


class GarbledCall:
    """A call whose replies cannot be read, for a reason that nobody foresaw."""

    def __init__(self) -> None:
        self.written = asyncio.Event()

    async def write(self, message: object) -> None:
        self.written.set()

    async def read(self) -> object:
        await self.written.wait()
        raise ValueError("garbled")

    def cancel(self) -> None:
        self.written.set()


async def test_an_unforeseen_error_of_the_stream_is_told_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    stream: WorkerStream[verify_pb2.StepRequest, verify_pb2.StepResponse] = WorkerStream(
        "verify service", GarbledCall(), on_stale=lambda: None
    )
    with pytest.raises(NotReady, match=r"ValueError\('garbled'\)"):
        await stream.exchange(verify_pb2.StepRequest(step_id=1), 20.0)
    assert "garbled" in stream.broken
    assert "reading from verify service failed" in caplog.text
    await stream.close()
