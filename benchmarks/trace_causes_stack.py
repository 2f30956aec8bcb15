"""Three real services on a tiny random model, for benchmarks about traces: every one can be hurt."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from spearhead.client import AsyncClient
from spearhead.errors import SpearheadError

_START_S = 120.0
_SCHEDULERS = ("scheduler", "successor")
"""The second one is started only by those who replace the first."""
_POLL_S = 0.1


class DelayProxy:
    """A TCP relay that can hold bytes back; stands for a slow network."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._server: asyncio.Server | None = None
        self._relays: set[asyncio.Task[None]] = set()
        self.delay_s = 0.0
        self.address = ""

    async def start(self) -> None:
        """Listens."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        """Cuts every connection."""
        assert self._server is not None
        self._server.close()
        for relay in self._relays:
            relay.cancel()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            writer.close()
            return
        for source, sink in ((reader, far_writer), (far_reader, writer)):
            relay = asyncio.create_task(self._relay(source, sink))
            self._relays.add(relay)
            relay.add_done_callback(self._relays.discard)

    async def _relay(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(1 << 16):
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                sink.write(data)
                await sink.drain()
        sink.close()


class Stack:
    """The processes of one stack and what is needed to hurt them.

    Args:
        folder: For logs, traces and orders to misbehave.
        model: Of both workers.
        pages: KV pages of the verify service.
        running: Most requests that run.
        telemetry: Settings of every service's telemetry; ``None`` = a trace file each in ``folder``.

    Attributes:
        shutdown_s: From SIGTERM until the last process had ended; 0 while it runs.
    """

    def __init__(
        self,
        folder: Path,
        model: Path,
        *,
        pages: int,
        running: int,
        telemetry: Mapping[str, str | float] | None = None,
    ) -> None:
        self.shutdown_s = 0.0
        self._telemetry = telemetry
        self.folder = folder
        self.faults = folder / "faults"
        self.faults.mkdir(parents=True)
        self._model = model
        self._pages = pages
        self._running = running
        self._ports = {name: _free_port() for name in ("verify", "draft", *_SCHEDULERS)}
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self.proxy = DelayProxy(self._ports["verify"])
        self.address = self.address_of("scheduler")

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Stack"]:
        """Starts everything and waits until it serves with drafts."""
        await self.proxy.start()
        try:
            for name in ("verify", "draft", "scheduler"):
                await self.start(name)
            await self.ready()
            yield self
        finally:
            asked_s = time.monotonic()
            for process in self._processes.values():
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.SIGCONT)
                    process.send_signal(signal.SIGTERM)
            for process in self._processes.values():
                await process.wait()
            self.shutdown_s = time.monotonic() - asked_s
            await self.proxy.close()

    async def start(self, name: str) -> None:
        """Starts one service."""
        argv = [sys.executable, "-m"]
        if name in _SCHEDULERS:
            argv += ["scheduler_service"]
        else:
            argv += ["benchmarks.trace_causes_worker", name, str(self.faults)]
        for key, value in self._settings(name).items():
            argv += ["--set", f"{key}={json.dumps(value)}"]
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = await asyncio.create_subprocess_exec(
                *argv, stdout=log, stderr=log, env={"OMP_WAIT_POLICY": "PASSIVE"} | os.environ
            )

    def address_of(self, name: str) -> str:
        """Where a service listens."""
        return f"127.0.0.1:{self._ports[name]}"

    async def end(self, name: str) -> int:
        """Tells a service to end as Kubernetes does, and waits for it.

        Returns:
            Its exit code.
        """
        process = self._processes.pop(name)
        process.send_signal(signal.SIGTERM)
        return await process.wait()

    async def serving(self, name: str) -> None:
        """Waits until a service says that it is ready."""
        async with asyncio.timeout(_START_S), grpc.aio.insecure_channel(self.address_of(name)) as channel:
            request = health_pb2.HealthCheckRequest(service="readiness")
            watch = health_pb2_grpc.HealthStub(channel).Watch(request, wait_for_ready=True)
            async for state in watch:
                if state.status == health_pb2.HealthCheckResponse.SERVING:
                    return

    async def ready(self) -> None:
        """Waits until requests are served and the drafter works."""
        async with asyncio.timeout(_START_S), AsyncClient(self.address) as client:
            while True:
                with contextlib.suppress(SpearheadError):
                    if (await client.server_info(timeout_s=5.0)).draft_status == "ready":
                        return
                for name, process in self._processes.items():
                    if process.returncode is not None:
                        raise RuntimeError(
                            f"{name} ended: {(self.folder / f'{name}.log').read_text()[-2000:]}"
                        )
                await asyncio.sleep(_POLL_S)

    async def pause(self, name: str, seconds: float) -> None:
        """Stops a process for a while."""
        self._processes[name].send_signal(signal.SIGSTOP)
        await asyncio.sleep(seconds)
        self._processes[name].send_signal(signal.SIGCONT)

    async def kill_and_restart(self, name: str) -> None:
        """Kills a service without warning, and starts it again."""
        self._processes[name].kill()
        await self._processes[name].wait()
        await self.start(name)

    def order(self, fault: str, text: str = "") -> None:
        """Tells a worker to misbehave."""
        part = self.faults / f"{fault}.part"
        part.write_text(text)
        part.rename(self.faults / fault)

    def _settings(self, name: str) -> dict[str, str | int | float]:
        settings: dict[str, str | int | float] = {
            "server.listen": f"127.0.0.1:{self._ports[name]}",
        }
        if self._telemetry is None:
            settings["telemetry.trace_file"] = str(self.folder / f"{name}.jsonl")
        else:
            settings |= {f"telemetry.{key}": value for key, value in self._telemetry.items()}
        if name in _SCHEDULERS:
            return settings | {
                "model.tokenizer": str(self._model),
                "verify.address": self.proxy.address,
                "draft.address": f"127.0.0.1:{self._ports['draft']}",
                "policy.static_draft_tokens": 3,
                "limits.max_running_requests": self._running,
                "limits.min_reconnect_s": 0.05,
                "limits.max_reconnect_s": 0.2,
            }
        return settings | {
            "model.path": str(self._model),
            "model.dtype": "float32",
            "model.threads": 1,
            "kv_cache.page_count": self._pages if name == "verify" else 2048,
        }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def make_model(folder: Path) -> Path:
    """A random Llama with a byte-level tokenizer, large enough that a step takes some milliseconds."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import AutoConfig, AutoModelForCausalLM

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=257, special_tokens=["<|end|>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(["tokens"], trainer)
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        "llama", hidden_size=128, intermediate_size=256, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=8192,
        vocab_size=tokenizer.get_vocab_size(), bos_token_id=0, eos_token_id=0, pad_token_id=None,
    )  # fmt: skip
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|end|>",
        "eos_token": "<|end|>",
        "chat_template": "{% for message in messages %}{{ message.content }}{% endfor %}",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder
