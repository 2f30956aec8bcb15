import asyncio
import sys
from pathlib import Path

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from spearhead.rpc import EndpointConfig
from tests.scheduler_fake import Running, Serving

SCRIPT = Path(__file__).with_name("minimal_client.py")


@pytest.fixture
async def running():
    async with Serving(EndpointConfig(listen="127.0.0.1:0")) as served:
        yield served


async def reflect(running: Running, **request: str) -> reflection_pb2.ServerReflectionResponse:
    async with grpc.aio.insecure_channel(running.address) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        call = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(**request)]))
        return await anext(aiter(call))


async def test_reflection_lists_the_services(running):
    response = await reflect(running, list_services="")
    names = {service.name for service in response.list_services_response.service}
    assert {"spearhead.v1.SchedulerService", "grpc.health.v1.Health"} <= names


async def test_reflection_hands_out_the_contract_itself(running):
    response = await reflect(running, file_containing_symbol="spearhead.v1.SchedulerService")
    assert b"GenerateRequest" in b"".join(response.file_descriptor_response.file_descriptor_proto)


async def test_twenty_lines_with_the_stubs_stream_text(running):
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(SCRIPT), running.address, "hi",
        cwd=SCRIPT.parents[2], env={"PYTHONPATH": str(SCRIPT.parents[2])}, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    output, _ = await process.communicate()
    assert process.returncode == 0
    assert output.decode().split() == [str(number) for number in range(32)]
    assert len(SCRIPT.read_text().splitlines()) <= 25
