"""``spearhead bench``: options, the run, the report."""

import argparse
import contextlib
import json
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict
from pathlib import Path

from spearhead.cli.bench.environment import environment
from spearhead.cli.bench.peer import PeerOptions, measure_peer
from spearhead.cli.bench.report import compare, run_table
from spearhead.cli.bench.runs import Load, run_comparison, run_loads, warm_up
from spearhead.cli.bench.statistics import as_json
from spearhead.cli.connection import add_connection_options, target_from
from spearhead.cli.interruption import run_interruptibly
from spearhead.cli.supervisor import Supervisor
from spearhead.cli.up import add_stack_options, print_line, stack_options_from
from spearhead.client import AsyncClient
from spearhead.errors import ConfigError


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command."""
    parser = commands.add_parser("bench", help="load a server and report latency, throughput and memory")
    parser.set_defaults(run=run)
    group = parser.add_argument_group("load")
    group.add_argument("--requests", type=int, default=32, metavar="N", help="requests a run (32)")
    group.add_argument(
        "--concurrency", type=_counts, default=(1, 8), metavar="N,N,…", help="closed loop, one run each (1,8)"
    )
    group.add_argument("--rate", type=float, default=0.0, metavar="R", help="open loop: R arrivals a second")
    group.add_argument("--prompt-words", type=_range, default=(16, 160), metavar="LOW:HIGH", help="(16:160)")
    group.add_argument("--output-tokens", type=_range, default=(32, 96), metavar="LOW:HIGH", help="(32:96)")
    group.add_argument("--cancel-share", type=float, default=0.0, metavar="P", help="clients that hang up")
    group.add_argument("--temperature", type=float, default=0.0, metavar="T")
    group.add_argument(
        "--draft-tokens", type=_drafts, default=(None,), metavar="auto|K,…", help="one run each (auto)"
    )
    group.add_argument("--seed", type=int, default=1, metavar="N", help="of the workload (1)")
    group.add_argument("--warm-up", type=int, default=4, metavar="N", help="requests before the runs (4)")
    group.add_argument("--timeout", type=float, default=600.0, metavar="S", help="of one request (600)")
    group = parser.add_argument_group("baseline")
    group.add_argument("--compare-transformers", action="store_true", help="time generate() on these weights")
    group.add_argument("--compare-streams", type=_counts, default=(1, 8), metavar="N,N,…", help="(1,8)")
    group.add_argument("--compare-tokens", type=int, default=64, metavar="N", help="tokens a stream (64)")
    add_stack_options(parser)
    add_connection_options(parser, default=None)


def run(arguments: argparse.Namespace) -> int:
    """Runs everything; prints a table and, as the last line, one JSON document."""
    if bool(arguments.address) == bool(arguments.model or arguments.config_dir):
        raise ConfigError("give either --address of a running server, or --model to start one")
    if arguments.compare_transformers and not arguments.model:
        raise ConfigError("--compare-transformers needs --model: the baseline runs the same weights")
    try:
        import psutil  # noqa: F401
    except ImportError:
        raise ConfigError("psutil is not installed; pip install 'spearhead[bench]'") from None
    document = run_interruptibly(_bench(arguments))
    print(json.dumps(document), flush=True)
    return 0


async def _bench(arguments: argparse.Namespace) -> dict[str, object]:
    # Imported here: it needs psutil, which only this command does.
    from spearhead.cli.bench.memory import MemoryWatch

    load = _load(arguments)
    async with _server(arguments) as (client, pids):
        info = await client.server_info()
        await warm_up(client, load)
        async with MemoryWatch(pids) as memory:
            runs = await run_loads(client, load)
        streams = arguments.compare_streams if arguments.compare_transformers else ()
        ours = await run_comparison(client, streams, arguments.compare_tokens)
    comparison = compare(ours, await _peer(arguments, info.target.dtype) if streams else {})
    print(run_table(runs, comparison, memory.report()), flush=True)
    return {
        **environment(),
        "server": {"model": info.target.model, "variant": info.variant, "dtype": info.target.dtype},
        "load": as_json(asdict(load)),
        "runs": {label: as_json(summary) for label, summary in runs.items()},
        "comparison": [asdict(line) for line in comparison],
        "memory": memory.report(),
    }


def _load(arguments: argparse.Namespace) -> Load:
    return Load(
        requests=arguments.requests,
        concurrencies=(0,) if arguments.rate else arguments.concurrency,
        rate=arguments.rate,
        draft_tokens=arguments.draft_tokens,
        prompt_words=arguments.prompt_words,
        output_tokens=arguments.output_tokens,
        cancel_share=arguments.cancel_share,
        temperature=arguments.temperature,
        seed=arguments.seed,
        warm_up_requests=arguments.warm_up,
        timeout_s=arguments.timeout,
    )


@contextlib.asynccontextmanager
async def _server(arguments: argparse.Namespace) -> AsyncIterator[tuple[AsyncClient, Mapping[str, int]]]:
    if arguments.address:
        async with AsyncClient(target_from(arguments)) as client:
            await client.wait_ready()
            yield client, {}
        return
    with tempfile.TemporaryDirectory(prefix="spearhead-bench-") as folder:
        options = stack_options_from(arguments, listen=f"unix:{Path(folder) / 'front.sock'}")
        async with (
            Supervisor(options, log=print_line, progress=print_line) as stack,
            AsyncClient(stack.address) as client,
        ):
            yield client, stack.pids


async def _peer(arguments: argparse.Namespace, dtype: str) -> dict[int, float]:
    """The baseline, after the services have gone, so that both have the machine to themselves."""
    print("timing transformers' generate on the same weights", file=sys.stderr)
    options = PeerOptions(
        model=arguments.model,
        dtype=dtype,
        streams=arguments.compare_streams,
        output_tokens=arguments.compare_tokens,
        threads=arguments.threads,
    )
    return await measure_peer(options)


def _counts(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _range(text: str) -> tuple[int, int]:
    low, _, high = text.partition(":")
    return int(low), int(high or low)


def _drafts(text: str) -> tuple[int | None, ...]:
    return tuple(None if part == "auto" else int(part) for part in text.split(","))
