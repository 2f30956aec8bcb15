"""The real service over several processes, and a way to step it from a test."""

import contextlib
import os
import queue
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
import pytest
import torch
from grpc_health.v1 import health_pb2, health_pb2_grpc

from spearhead import PROTOCOL_VERSION
from spearhead.v1 import types_pb2, verify_pb2, verify_pb2_grpc

ROOT = Path(__file__).parents[3]
SERVING = health_pb2.HealthCheckResponse.SERVING
DEADLINE_S = 120
AT_ONCE = [
    (f"grpc.{which}_reconnect_backoff_ms", 100) for which in ("initial", "min", "max")
]  # a service that starts is found when it listens, not seconds later


@dataclass
class Service:
    """A service that is ready.

    Attributes:
        leader: Rank 0.
        followers: The other ranks.
        address: Of rank 0.
        log: What all of them say.
    """

    leader: subprocess.Popen
    followers: list[psutil.Process]
    address: str
    log: Path

    def __post_init__(self) -> None:
        self.channel = grpc.insecure_channel(self.address, AT_ONCE)
        self.stub = verify_pb2_grpc.VerifyServiceStub(self.channel)

    def info(self) -> Any:
        request = verify_pb2.VerifyServiceGetModelInfoRequest(protocol_version=PROTOCOL_VERSION)
        return self.stub.GetModelInfo(request, timeout=DEADLINE_S)

    def readiness(self) -> Iterator[bool]:
        """Each state of readiness as it comes."""
        return watch(self.channel, "readiness")

    @contextlib.contextmanager
    def stepping(self) -> Iterator[Callable[..., Any]]:
        """``step(item, …) -> response`` on one stream."""
        requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        replies = self.stub.Step(iter(requests.get, None), timeout=DEADLINE_S)

        def step(*items: Any, releases: Sequence[int] = ()) -> Any:
            released = [types_pb2.SequenceRelease(sequence_id=one) for one in releases]
            requests.put(verify_pb2.StepRequest(items=items, releases=released))
            return next(replies)

        try:
            yield step
        finally:
            requests.put(None)


def watch(channel: grpc.Channel, name: str) -> Iterator[bool]:
    """Each state of a part of health as it comes."""
    request = health_pb2.HealthCheckRequest(service=name)
    states = health_pb2_grpc.HealthStub(channel).Watch(request, timeout=DEADLINE_S, wait_for_ready=True)
    return (state.status == SERVING for state in states)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """On a busy machine threads of a tiny product wait longer for each other than they compute."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def start_ranks(tmp_path: Path) -> Iterator[Callable[..., Service]]:
    """``start_ranks(model, **{"section.key": value}) -> Service`` of two ranks, spawned by the first.

    ``by="torchrun"`` starts each rank as torchrun does, ``by="pods"`` as two pods of a LeaderWorkerSet do.
    """
    services: list[Service] = []
    with tempfile.TemporaryDirectory(prefix="sp") as folder, contextlib.ExitStack() as stack:

        def start(model: Path, *, by: str = "spawn", size: int = 2, **settings: Any) -> Service:
            address = f"unix:{folder}/{len(services)}.sock"
            log = stack.enter_context((tmp_path / f"ranks-{len(services)}.log").open("w+"))
            values = {
                "model.path": model,
                "model.dtype": "float32",
                "model.threads": 1,
                "kv_cache.page_count": 96,
                "parallel.tensor_parallel_size": size,
                "parallel.lost_after_s": 20,  # a busy machine is no loss
                "parallel.launch": "spawn" if by == "spawn" else "environment",
                "parallel.rendezvous_port": free_port(),
            } | settings
            processes = []
            for number, place in enumerate(places(by, size, values["parallel.rendezvous_port"])):
                own = {"server.listen": address + f".{number}" * (number > 0)}
                words = [sys.executable, "-m", "verify_service"]
                words += [f"--set={key}={value}" for key, value in (values | own).items()]
                environment = {**os.environ, **{name: str(value) for name, value in place.items()}}
                processes.append(
                    subprocess.Popen(words, cwd=ROOT, env=environment, stdout=log, stderr=log, text=True)
                )
                stack.callback(end, processes[-1])
            service = Service(processes[0], [], address, Path(log.name))
            stack.callback(service.channel.close)
            services.append(service)
            assert any(service.readiness()), service.log.read_text()
            service.followers = [
                *psutil.Process(processes[0].pid).children(),
                *(psutil.Process(process.pid) for process in processes[1:]),
            ]
            assert len(service.followers) == size - 1
            return service

        yield start


def places(by: str, size: int, port: int) -> list[dict[str, Any]]:
    """The environment of each process that is started by hand."""
    if by == "torchrun":
        meeting = {"WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        return [{"RANK": rank, "LOCAL_RANK": rank, **meeting} for rank in range(size)]
    if by == "pods":
        group = {"LWS_LEADER_ADDRESS": "127.0.0.1", "LWS_GROUP_SIZE": 2}
        return [{"LWS_WORKER_INDEX": pod, **group} for pod in range(2)]
    return [{}]


def end(process: subprocess.Popen) -> None:
    """Ends a rank; those that it started end by themselves."""
    process.kill()
    process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def probe() -> Callable[[str, str], bool]:
    """``probe(address, name)`` returns when a part of health serves at an address."""

    def ask(address: str, name: str) -> bool:
        with grpc.insecure_channel(address, AT_ONCE) as channel:
            return any(watch(channel, name))

    return ask


GREEDY = types_pb2.WorkerSampling(temperature=0, top_p=1, repetition_penalty=1)


@pytest.fixture
def step_item() -> Callable[..., Any]:
    """``step_item(sequence_id, token_ids, **fields)``, sampled greedily unless ``sample=False``."""

    def make(sequence_id: int, token_ids: Sequence[int], **fields: Any) -> Any:
        packed = np.asarray(token_ids, "<u4").tobytes()
        return verify_pb2.StepItem(
            sequence_id=sequence_id,
            token_ids=packed,
            **({"sample": True, "sampling": GREEDY} | fields),
        )

    return make
