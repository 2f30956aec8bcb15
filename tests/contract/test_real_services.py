import asyncio
import sys
from pathlib import Path

import grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from spearhead.cli.stack import StackOptions
from spearhead.cli.supervisor import Supervisor

SCRIPT = Path(__file__).with_name("minimal_client.py")


def ignore(name: str, text: str) -> None:
    """The services' output is in the failure, should one end."""


async def services(address: str) -> set[str]:
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    async with grpc.aio.insecure_channel(address) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        response = await anext(aiter(stub.ServerReflectionInfo(iter([request]))))
    return {service.name for service in response.list_services_response.service}


async def test_all_three_services_reflect_and_the_minimal_script_streams_text(tiny_checkpoint, tmp_path):
    model = str(tiny_checkpoint("llama"))
    options = StackOptions(model=model, draft=model, threads=1, listen=f"unix:{tmp_path}/front.sock")
    async with Supervisor(options, log=ignore, progress=ignore) as stack:
        for name, address in (
            ("Scheduler", stack.address),
            ("Verify", stack.worker_address("verify")),
            ("Draft", stack.worker_address("draft")),
        ):
            assert f"spearhead.v1.{name}Service" in await services(address)
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(SCRIPT), stack.address, "Once upon a time",
            cwd=SCRIPT.parents[2], env={"PYTHONPATH": str(SCRIPT.parents[2])}, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        output, _ = await process.communicate()
    assert process.returncode == 0
    assert output.decode().strip()
