import asyncio
import os
import signal
import socket
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from spearhead.client import AsyncClient, Delta, Finished, RetryPolicy, SamplingParams
from spearhead.errors import NotReady

ROOT = Path(__file__).resolve().parents[2]
PATIENT = RetryPolicy(attempts=1)


@asynccontextmanager
async def up(*arguments: object):
    """``spearhead up`` as a process; killed at the end if it still runs."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "spearhead.cli", "up", *map(str, arguments)),
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def lines_until(process, text: str) -> list[str]:
    """Standard error up to the first line that holds ``text``, or to its end."""
    lines = []
    async for line in process.stderr:
        lines.append(line.decode())
        if text in lines[-1]:
            break
    return lines


def services_of(process) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


async def test_sigterm_lets_a_running_answer_finish_and_leaves_no_process(tiny_checkpoint, tmp_path):
    model = tiny_checkpoint("llama", max_position_embeddings=2048)
    address = f"unix:{tmp_path}/front.sock"
    sampling = SamplingParams(temperature=0.0, max_tokens=200, ignore_eos=True)
    async with up("--model", model, "--draft", model, "--threads", 1, "--listen", address) as process:
        assert "serving at" in (await lines_until(process, "serving at"))[-1]
        services = services_of(process)
        assert len(services) == 3
        async with AsyncClient(address, retry=PATIENT) as client:
            events = client.generate("Once upon a time", sampling=sampling)
            async for event in events:
                if isinstance(event, Delta):
                    break
            process.send_signal(signal.SIGTERM)
            await lines_until(process, "draining")
            with pytest.raises(NotReady):
                await client.generate_text("hi", sampling=sampling)
            rest = [event async for event in events]
        assert isinstance(rest[-1], Finished)
        assert rest[-1].usage.completion_tokens == 200
        await lines_until(process, "no such line")
        assert await process.wait() == 0
    assert not [service for service in services if service.is_running()]


async def test_a_killed_worker_ends_everything_with_its_name_and_a_code(tiny_checkpoint, tmp_path):
    model = tiny_checkpoint("llama")
    listen = f"unix:{tmp_path}/front.sock"
    async with up("--model", model, "--draft", "none", "--threads", 1, "--listen", listen) as process:
        await lines_until(process, "serving at")
        services = services_of(process)
        verify = next(service for service in services if "verify_service" in service.cmdline())
        verify.kill()
        errors = await lines_until(process, "no such line")
        assert await process.wait() == 1
    assert any("the verify service ended with exit code -9" in line for line in errors)
    assert not [service for service in services if service.is_running()]


async def test_a_model_that_is_no_model_is_said_by_the_service_that_read_it(tmp_path):
    listen = f"unix:{tmp_path}/front.sock"
    async with up("--model", tmp_path, "--draft", "none", "--listen", listen) as process:
        errors = "".join(await lines_until(process, "no such line"))
        assert await process.wait() == 1
    assert "the verify service ended with exit code 2" in errors
    assert "config.json" in errors
    assert "Traceback" not in errors


async def test_a_port_in_use_is_said_before_any_model_is_loaded(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        async with up("--model", tmp_path, "--listen", f"127.0.0.1:{port}") as process:
            errors = "".join(await lines_until(process, "no such line"))
            assert await process.wait() == 2
    assert f"127.0.0.1:{port}" in errors
    assert "in use" in errors
    assert "starting" not in errors
