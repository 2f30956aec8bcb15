"""A worker process whose load never ends, unless it is to write traces; prints when the load begins."""

import asyncio
import sys
import time
from pathlib import Path

from spearhead.rpc import EndpointConfig
from spearhead.telemetry import TelemetryConfig
from spearhead.worker.serving import serve_worker

TRACES = Path(sys.argv[2]) if len(sys.argv) > 2 else None


class Servicer:
    def end_streams(self) -> None:
        pass


def load(servicer: Servicer) -> None:
    print("loading", flush=True)
    if TRACES is None:
        time.sleep(600)


asyncio.run(
    serve_worker(
        "slow_worker",
        "spearhead.v1.VerifyService",
        server_config=EndpointConfig(listen=sys.argv[1]),
        telemetry_config=TelemetryConfig(trace_file=TRACES),
        stuck_after_s=120.0,
        make_servicer=lambda thread, telemetry: Servicer(),
        register=lambda servicer, server: None,
        load=load,
    )
)
