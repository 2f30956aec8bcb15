"""A process with nothing but a health service, for tests of the supervisor.

Usage: health_process.py SOCKET MODE. Modes: serve; die (exit code 3 with a last line); never (not ready);
stubborn (ignores SIGTERM).
"""

import asyncio
import contextlib
import signal
import sys

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc


async def main(socket: str, mode: str) -> None:
    if mode == "die":
        print("cannot read the model", file=sys.stderr)
        raise SystemExit(3)
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stopped.set if mode != "stubborn" else lambda: None)
    server = grpc.aio.server()
    servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    if mode != "never":
        for name in ("startup", "readiness"):
            await servicer.set(name, health_pb2.HealthCheckResponse.SERVING)
    print("up", flush=True)
    await stopped.wait()
    print("down", flush=True)
    await server.stop(None)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(*sys.argv[1:]))
