"""What tracing costs, and a collector in trouble: ``python -m benchmarks.trace_overhead [--runs 5]``.

Starts the three real services on a tiny random model, each its own process, once for each case and run, and
drives them with the same requests:

* ``off``: nothing is recorded;
* ``collector``: all requests are recorded and sent to a collector that takes them;
* ``refused``: nobody listens where the collector should be;
* ``black hole``: somebody accepts the connection and never answers;
* ``killed``: the collector is gone after half of the requests.

The cases of a run follow each other in an order that rotates from run to run, so that a machine that drifts
hurts all alike. Compared are medians over runs, each beside ``off``: tokens a second, 99th percentile of the
time between tokens, time from SIGTERM to the end of the last process. The gate comes first: no request may
fail in any case. Prints a table and, as the last line, the same as one JSON document. The collector runs in
this process and shares the machine with the services, so that ``collector`` is an upper bound.
"""

import argparse
import asyncio
import contextlib
import json
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from benchmarks.trace_causes_stack import Stack, make_model
from spearhead.cli.bench.drive import DriveOptions, drive
from spearhead.cli.bench.environment import environment
from spearhead.cli.bench.statistics import summarise
from spearhead.cli.bench.workload import plan_comparison
from spearhead.client import AsyncClient

CASES = ("off", "collector", "refused", "black hole", "killed")
LIMITS = {"tokens_per_s": 0.99, "itl_p99_ms": 1.02, "extra_shutdown_s": 2.0}
"""Least share of the tokens a second, most of the time between tokens, most seconds more at the end."""


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Takes spans and counts them."""

    def __init__(self) -> None:
        self.span_count = 0

    async def Export(  # noqa: N802  # the protocol's name
        self, request: trace_service_pb2.ExportTraceServiceRequest, context: grpc.aio.ServicerContext
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        """Counts."""
        self.span_count += sum(len(s.spans) for r in request.resource_spans for s in r.scope_spans)
        return trace_service_pb2.ExportTraceServiceResponse()


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One case of one run.

    Attributes:
        tokens_per_s: Of all streams together.
        itl_p99_ms: Time between tokens, 99th percentile.
        shutdown_s: From SIGTERM until the last process had ended.
        span_count: Spans that the collector got.
    """

    tokens_per_s: float
    itl_p99_ms: float
    shutdown_s: float
    span_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """Where spans go in one case.

    Attributes:
        settings: Of every service's telemetry.
        collector: What counts them.
        strike: Called when half of the requests have ended.
    """

    settings: Mapping[str, str | float]
    collector: Collector
    strike: Callable[[], None] = lambda: None


@contextlib.asynccontextmanager
async def trouble(case: str) -> AsyncIterator[Trouble]:
    """Sets the stage for one case."""
    collector = Collector()
    if case == "off":
        yield Trouble(settings={"sample_ratio": 0.0}, collector=collector)
        return
    with socket.socket() as port:
        port.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{port.getsockname()[1]}"
        settings: dict[str, str | float] = {"otlp_endpoint": f"http://{endpoint}", "sample_ratio": 1.0}
        if case == "refused":
            yield Trouble(settings=settings, collector=collector)  # Bound and not listening: refused.
            return
        if case == "black hole":
            port.listen(64)
            yield Trouble(settings=settings, collector=collector)
            return
    server = grpc.aio.server()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)  # type: ignore[no-untyped-call]
    server.add_insecure_port(endpoint)
    await server.start()
    ends: list[asyncio.Task[None]] = []

    def strike() -> None:
        if case == "killed" and not ends:
            ends.append(asyncio.create_task(server.stop(None)))

    try:
        yield Trouble(settings=settings, collector=collector, strike=strike)
    finally:
        await server.stop(None)


async def measure(case: str, model: Path, folder: Path, *, streams: int, tokens: int) -> Measurement:
    """Runs one case from start to end.

    Raises:
        RuntimeError: A request failed: telemetry must never cost one.
    """
    async with trouble(case) as stage:
        stack = Stack(folder, model, pages=64 * streams, running=streams, telemetry=stage.settings)
        async with stack.running(), AsyncClient(stack.address) as client:
            options = DriveOptions(concurrency=streams)
            await drive(client, plan_comparison(streams, 8, 0), options, lambda outcome: None)
            requests = [r for repeat in (1, 2) for r in plan_comparison(streams, tokens, repeat)]
            done = 0

            def on_done(_: object) -> None:
                nonlocal done
                done += 1
                if 2 * done >= len(requests):
                    stage.strike()

            summary = summarise(await drive(client, requests, options, on_done))
        if summary.failed:
            raise RuntimeError(f"{summary.failed} requests failed in case {case!r}: {summary.errors[0]}")
        return Measurement(
            tokens_per_s=summary.tokens_per_s,
            itl_p99_ms=summary.itl_ms.p99,
            shutdown_s=stack.shutdown_s,
            span_count=stage.collector.span_count,
        )


async def measure_all(
    model: Path, folder: Path, *, streams: int, tokens: int, runs: int
) -> dict[str, list[Measurement]]:
    """Every case, ``runs`` times, in rotating order."""
    found: dict[str, list[Measurement]] = {case: [] for case in CASES}
    for run in range(runs):
        for case in (*CASES[run % len(CASES) :], *CASES[: run % len(CASES)]):
            own = folder / f"{run}-{case.replace(' ', '-')}"
            found[case].append(await measure(case, model, own, streams=streams, tokens=tokens))
    return found


def compare(found: Mapping[str, Sequence[Measurement]]) -> list[dict[str, object]]:
    """Medians of each case, beside those of ``off``, and whether they are within :data:`LIMITS`."""
    rows: list[dict[str, object]] = []
    base = {name: median(getattr(m, name) for m in found["off"]) for name in _NUMBERS}
    for case, measured in found.items():
        own = {name: median(getattr(m, name) for m in measured) for name in _NUMBERS}
        ratio = own["tokens_per_s"] / base["tokens_per_s"]
        slower = own["itl_p99_ms"] / base["itl_p99_ms"]
        extra_s = own["shutdown_s"] - base["shutdown_s"]
        within = (
            ratio >= LIMITS["tokens_per_s"]
            and slower <= LIMITS["itl_p99_ms"]
            and extra_s <= LIMITS["extra_shutdown_s"]
        )
        rows.append(
            {
                "case": case,
                **own,
                "tokens_per_s_ratio": ratio,
                "itl_p99_ratio": slower,
                "extra_shutdown_s": extra_s,
                "within_limits": within,
            }
        )
    return rows


_NUMBERS = ("tokens_per_s", "itl_p99_ms", "shutdown_s", "span_count")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="overhead") as name:
        folder = Path(name)
        model = make_model(folder / "model")
        size = {"streams": options.streams, "tokens": options.tokens, "runs": options.runs}
        found = asyncio.run(measure_all(model, folder, **size))
    rows = compare(found)
    print("case        tokens/s  of off  ITL p99 ms  of off  shutdown s  extra s    spans")
    for row in rows:
        print(
            f"{row['case']:11} {row['tokens_per_s']:8.1f} {row['tokens_per_s_ratio']:7.3f} "
            f"{row['itl_p99_ms']:11.2f} {row['itl_p99_ratio']:7.3f} {row['shutdown_s']:11.2f} "
            f"{row['extra_shutdown_s']:8.2f} {row['span_count']:8.0f}"
        )
    command = "python -m benchmarks.trace_overhead " + " ".join(f"--{name} {size[name]}" for name in size)
    document = {"benchmark": "trace_overhead", "limits": LIMITS, **size, "rows": rows}
    print(json.dumps({**document, **environment(), "command": command}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
