"""Restarts each service under load: ``python -m benchmarks.rolling_restart [--streams 32]``.

Starts the three real services on a tiny random model, each its own process, and keeps a
number of streams busy. Then, one after the other, as a rolling update does:

* the draft and the verify service are told to end and started again, in place, since their GPU has no room
  for two (``maxSurge: 0``);
* a second scheduler is started, and the first one told to end once the second is ready; clients know both
  addresses, as behind a headless service.

Every request has to end with all its tokens, and every process with code 0. Prints a line a restart and, as
the last line, the same as one JSON document; exits with 1 where a request failed.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.trace_causes_stack import Stack, make_model
from spearhead.cli.bench.drive import DriveOptions, Outcome, drive
from spearhead.cli.bench.environment import environment
from spearhead.cli.bench.workload import plan_comparison
from spearhead.client import AsyncClient

REST_S = 3.0
"""Between restarts: requests that began in one have ended before the next."""


async def restart_each(stack: Stack, rest_s: float) -> list[dict[str, object]]:
    """One service after the other; says how each ended and how long its place was empty."""
    found: list[dict[str, object]] = []
    for name in ("draft", "verify", "scheduler"):
        await asyncio.sleep(rest_s)
        if name == "scheduler":
            await stack.start("successor")
            await stack.serving("successor")
        started_s = time.monotonic()
        exit_code = await stack.end(name)
        drained_s = time.monotonic() - started_s
        if name != "scheduler":
            await stack.start(name)
            await stack.serving(name)
        found.append(
            {
                "service": name,
                "exit_code": exit_code,
                "drained_s": drained_s,
                "back_after_s": time.monotonic() - started_s,
            }
        )
    await asyncio.sleep(rest_s)
    return found


async def measure(folder: Path, *, streams: int, tokens: int, rest_s: float = REST_S) -> dict[str, object]:
    """Load and restarts together."""
    model = make_model(folder / "model")
    stack = Stack(folder / "run", model, pages=64 * streams, running=streams, telemetry={"sample_ratio": 0.0})
    outcomes: list[Outcome] = []
    async with stack.running():
        both = f"ipv4:{stack.address_of('scheduler')},{stack.address_of('successor')}"
        async with AsyncClient(both) as client:
            restarting = asyncio.create_task(restart_each(stack, rest_s))
            repeat = 0
            while not restarting.done():
                requests = plan_comparison(streams, tokens, repeat)
                options = DriveOptions(concurrency=streams, timeout_s=120.0)
                await drive(client, requests, options, outcomes.append)
                repeat += 1
            restarts = restarting.result()
    errors = [outcome.error for outcome in outcomes if outcome.error]
    short = sum(not one.error and one.token_count != tokens for one in outcomes)
    gaps = [
        later - earlier
        for one in outcomes
        for (earlier, _), (later, _) in zip(one.token_times_s, one.token_times_s[1:], strict=False)
    ]
    return {
        "restarts": restarts,
        "requests": len(outcomes),
        "failed": len(errors),
        "short": short,
        "longest_gap_s": max(gaps, default=0.0),
        "errors": sorted(set(errors)),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=96)
    options = parser.parse_args(arguments)
    size = {"streams": options.streams, "tokens": options.tokens}
    command = f"python -m benchmarks.rolling_restart --streams {options.streams} --tokens {options.tokens}"
    with tempfile.TemporaryDirectory(prefix="rolling") as name:
        found = asyncio.run(measure(Path(name), **size))
    restarts = found["restarts"]
    assert isinstance(restarts, list)
    for restart in restarts:
        print(
            f"{restart['service']:10} exit {restart['exit_code']}, drained in {restart['drained_s']:.1f} s, "
            f"ready again after {restart['back_after_s']:.1f} s"
        )
    print(f"{found['requests']} requests, {found['failed']} failed, {found['short']} short")
    print(json.dumps({"benchmark": "rolling_restart", **size, **found, **environment(), "command": command}))
    clean = all(restart["exit_code"] == 0 for restart in restarts)
    return int(bool(found["failed"] or found["short"] or not clean))


if __name__ == "__main__":
    sys.exit(main())
