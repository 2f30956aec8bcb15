"""A worker process whose load takes longer than any test; prints when it has begun."""

import asyncio
import sys
import time

from spearhead.rpc import EndpointConfig
from spearhead.telemetry import TelemetryConfig
from spearhead.worker.serving import serve_worker


class Servicer:
    def end_streams(self) -> None:
        pass


def load(servicer: Servicer) -> None:
    print("loading", flush=True)
    time.sleep(600)


asyncio.run(
    serve_worker(
        "slow_worker",
        "spearhead.v1.VerifyService",
        server_config=EndpointConfig(listen=sys.argv[1]),
        telemetry_config=TelemetryConfig(),
        stuck_after_s=120.0,
        make_servicer=lambda thread, telemetry: Servicer(),
        register=lambda servicer, server: None,
        load=load,
    )
)
