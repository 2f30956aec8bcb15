"""The process: what it says while it starts, how it ends, and how it fails to start."""

import asyncio
import contextlib
import signal
import socket
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from spearhead.rpc import TargetConfig, create_channel
from spearhead.tokenizer import Tokenizer
from spearhead.v1 import scheduler_pb2, scheduler_pb2_grpc
from tests.scheduler_service.fake_workers import FakeDraft, FakeVerify
from tests.scheduler_service.stack import Stream, WorkerServer
from tests.scheduler_service.toy_model import ToyModel, letter_ids

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


@dataclass
class Process:
    """A scheduler in a process of its own."""

    process: asyncio.subprocess.Process
    channel: grpc.aio.Channel

    @property
    def stub(self) -> scheduler_pb2_grpc.SchedulerServiceStub:
        return scheduler_pb2_grpc.SchedulerServiceStub(self.channel)

    async def health(self, name: str) -> int:
        request = health_pb2.HealthCheckRequest(service=name)
        reply = await health_pb2_grpc.HealthStub(self.channel).Check(request, wait_for_ready=True, timeout=30)
        return reply.status

    async def wait_health(self, name: str, status: int) -> None:
        watch = health_pb2_grpc.HealthStub(self.channel).Watch(
            health_pb2.HealthCheckRequest(service=name), wait_for_ready=True, timeout=30
        )
        async for reply in watch:
            if reply.status == status:
                return


@contextlib.asynccontextmanager
async def start(folder: Path, tokenizer_folder: Path, *overrides: str) -> AsyncIterator[Process]:
    settings = [
        f"server.listen=unix:{folder / 's.sock'}",
        f"model.tokenizer={tokenizer_folder}",
        f"verify.address=unix:{folder / 'v.sock'}",
        "limits.min_reconnect_s=0.01",
        "limits.max_reconnect_s=0.05",
        *overrides,
    ]
    arguments = [part for setting in settings for part in ("--set", setting)]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "scheduler_service", *arguments, stderr=asyncio.subprocess.PIPE
    )
    channel = create_channel(TargetConfig(address=f"unix:{folder / 's.sock'}"))
    try:
        yield Process(process, channel)
    finally:
        await channel.close()
        if process.returncode is None:
            process.kill()
        await process.communicate()


@pytest.fixture
async def verify(socket_folder: Path, tokenizer: Tokenizer) -> AsyncIterator[WorkerServer]:
    """A verify service that is not started yet."""
    worker = FakeVerify(
        ToyModel(letter_ids(tokenizer)),
        tokenizer_hash=tokenizer.hash,
        vocab_size=tokenizer.vocab_size,
        eos_token_ids=tokenizer.eos_token_ids,
    )
    server = WorkerServer(worker, socket_folder / "v.sock")
    yield server
    await server.kill()


def request(max_tokens: int) -> scheduler_pb2.GenerateRequest:
    return scheduler_pb2.GenerateRequest(prompt="hello", sampling={"max_tokens": max_tokens})


async def test_readiness_follows_the_verify_service(
    socket_folder: Path, tokenizer_folder: Path, verify: WorkerServer
) -> None:
    async with start(socket_folder, tokenizer_folder) as scheduler:
        assert await scheduler.health("liveness") == SERVING
        await scheduler.wait_health("startup", SERVING)
        assert await scheduler.health("readiness") == NOT_SERVING
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await scheduler.stub.GetServerInfo(scheduler_pb2.GetServerInfoRequest())
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        await verify.start()
        await scheduler.wait_health("readiness", SERVING)
        assert await scheduler.health("spearhead.v1.SchedulerService") == SERVING
        await verify.kill()
        await scheduler.wait_health("readiness", NOT_SERVING)
        assert await scheduler.health("liveness") == SERVING


async def test_drafts_have_a_health_of_their_own_on_which_readiness_does_not_depend(
    socket_folder: Path, tokenizer_folder: Path, tokenizer: Tokenizer, verify: WorkerServer
) -> None:
    await verify.start()
    worker = FakeDraft(ToyModel([1]), tokenizer_hash=tokenizer.hash, vocab_size=tokenizer.vocab_size)
    draft = WorkerServer(worker, socket_folder / "d.sock")
    async with start(socket_folder, tokenizer_folder, f"draft.address={draft.address}") as scheduler:
        await scheduler.wait_health("readiness", SERVING)
        assert await scheduler.health("draft") == NOT_SERVING
        await draft.start()
        await scheduler.wait_health("draft", SERVING)
        await draft.kill()
        await scheduler.wait_health("draft", NOT_SERVING)
        assert await scheduler.health("readiness") == SERVING


async def test_a_signal_lets_running_requests_finish(
    socket_folder: Path, tokenizer_folder: Path, verify: WorkerServer
) -> None:
    await verify.start()
    async with start(socket_folder, tokenizer_folder) as scheduler:
        await scheduler.wait_health("readiness", SERVING)
        stream = Stream(scheduler.stub.Generate(request(500)))
        await stream.next("started")
        scheduler.process.send_signal(signal.SIGTERM)
        await scheduler.wait_health("readiness", NOT_SERVING)
        assert await scheduler.health("liveness") == SERVING
        answer = await stream.rest()
        assert len(answer.token_ids) == 500
        assert await scheduler.process.wait() == 0
    await verify.worker.wait_empty()


async def test_while_draining_requests_may_be_watched_and_ended(
    socket_folder: Path, tokenizer_folder: Path, verify: WorkerServer
) -> None:
    await verify.start()
    async with start(socket_folder, tokenizer_folder) as scheduler:
        await scheduler.wait_health("readiness", SERVING)
        verify.worker.gate.clear()
        message = request(500)
        message.request_id = "mine"
        stream = Stream(scheduler.stub.Generate(message))
        await stream.next("started")
        assert not (await scheduler.stub.GetLoad(scheduler_pb2.GetLoadRequest())).draining
        scheduler.process.send_signal(signal.SIGTERM)
        await scheduler.wait_health("readiness", NOT_SERVING)
        assert (await scheduler.stub.GetLoad(scheduler_pb2.GetLoadRequest())).draining
        assert (await scheduler.stub.GetServerInfo(scheduler_pb2.GetServerInfoRequest())).version
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await Stream(scheduler.stub.Generate(request(1))).rest()
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        assert (await scheduler.stub.Abort(scheduler_pb2.AbortRequest(request_id="mine"))).found
        assert (await stream.rest()).finished.reason == scheduler_pb2.FINISH_REASON_ABORT
        assert await scheduler.process.wait() == 0
        verify.worker.gate.set()


async def failure(folder: Path, tokenizer_folder: Path, *overrides: str) -> str:
    """What a scheduler that cannot start says."""
    async with start(folder, tokenizer_folder, *overrides) as scheduler:
        assert scheduler.process.stderr is not None
        said = await scheduler.process.stderr.read()
        assert await scheduler.process.wait() == 2
        return said.decode().splitlines()[-1]


async def test_a_verify_service_with_another_tokenizer_ends_the_start(
    socket_folder: Path, tokenizer_folder: Path, tokenizer: Tokenizer, verify: WorkerServer
) -> None:
    verify.worker.tokenizer_hash = "sha256:other"
    await verify.start()
    said = await failure(socket_folder, tokenizer_folder)
    assert said.startswith("scheduler_service: verify service at unix:")
    assert "sha256:other" in said
    assert tokenizer.hash in said


async def test_a_port_in_use_is_named(socket_folder: Path, tokenizer_folder: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert address in await failure(socket_folder, tokenizer_folder, f"server.listen={address}")


async def test_a_folder_without_tokenizer_is_named(socket_folder: Path, tmp_path: Path) -> None:
    assert str(tmp_path) in await failure(socket_folder, tmp_path)


async def test_a_table_that_does_not_exist_is_named(socket_folder: Path, tokenizer_folder: Path) -> None:
    said = await failure(
        socket_folder, tokenizer_folder, "policy.kind=table", f"policy.table={socket_folder}/t.json"
    )
    assert f"{socket_folder}/t.json does not exist" in said
