"""``spearhead bench``: options, the run, the report."""

import argparse
import contextlib
import json
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from spearhead.cli.bench.drive import DriveOptions, Outcome, drive
from spearhead.cli.bench.environment import environment
from spearhead.cli.bench.memory import MemoryWatch
from spearhead.cli.bench.peer import PeerOptions, measure_peer
from spearhead.cli.bench.report import run_table
from spearhead.cli.bench.statistics import Summary, as_json, summarise
from spearhead.cli.bench.workload import PlannedRequest, WorkloadOptions, plan_requests
from spearhead.cli.connection import add_connection_options, target_from
from spearhead.cli.interruption import run_interruptibly
from spearhead.cli.progress import ProgressBar
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
    document = run_interruptibly(_bench(arguments))
    print(json.dumps(document), flush=True)
    return 0


async def _bench(arguments: argparse.Namespace) -> dict[str, object]:
    runs: dict[str, Summary] = {}
    async with _server(arguments) as (client, pids):
        info = await client.server_info()
        await _warm_up(client, arguments)
        async with MemoryWatch(pids) as memory:
            for drafts in arguments.draft_tokens:
                for concurrency in (0,) if arguments.rate else arguments.concurrency:
                    label = _label(drafts, concurrency, arguments.rate)
                    runs[label] = await _one_run(client, arguments, label, drafts, concurrency)
    peer = await _peer(arguments, info.target.dtype)
    print(run_table(runs, peer, memory.report()), flush=True)
    return {
        **environment(),
        "server": {"model": info.target.model, "variant": info.variant, "dtype": info.target.dtype},
        "workload": as_json(_load_options(arguments)),
        "runs": {label: as_json(summary) for label, summary in runs.items()},
        "transformers": peer,
        "memory": memory.report(),
    }


def _load_options(arguments: argparse.Namespace) -> dict[str, object]:
    names = ("requests", "rate", "prompt_words", "output_tokens", "cancel_share", "temperature", "seed")
    return {name: getattr(arguments, name) for name in names}


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


async def _warm_up(client: AsyncClient, arguments: argparse.Namespace) -> None:
    options = WorkloadOptions(requests=arguments.warm_up, output_tokens=(8, 16), seed=arguments.seed + 1)
    await drive(client, plan_requests(options), DriveOptions(), on_done=lambda outcome: None)


async def _one_run(
    client: AsyncClient, arguments: argparse.Namespace, label: str, drafts: int | None, concurrency: int
) -> Summary:
    bar = ProgressBar(label, arguments.requests)

    def on_done(outcome: Outcome) -> None:
        bar.advance()

    options = DriveOptions(
        concurrency=concurrency,
        temperature=arguments.temperature,
        draft_tokens=drafts,
        timeout_s=arguments.timeout,
    )
    return summarise(await drive(client, _planned(arguments, label), options, on_done))


def _planned(arguments: argparse.Namespace, label: str) -> tuple[PlannedRequest, ...]:
    """Every run gets the same lengths, but prompts that no earlier run left in the prefix cache."""
    options = WorkloadOptions(
        requests=arguments.requests,
        prompt_words=arguments.prompt_words,
        output_tokens=arguments.output_tokens,
        rate=arguments.rate,
        cancel_share=arguments.cancel_share,
        seed=arguments.seed,
        label=label,
    )
    return plan_requests(options)


async def _peer(arguments: argparse.Namespace, dtype: str) -> dict[str, object] | None:
    """The baseline, after the services have gone, so that both have the machine to themselves."""
    if not arguments.compare_transformers:
        return None
    print("timing transformers' generate on the same weights", file=sys.stderr)
    options = PeerOptions(
        model=arguments.model,
        dtype=dtype,
        streams=arguments.compare_streams,
        output_tokens=arguments.compare_tokens,
        threads=arguments.threads,
    )
    return await measure_peer(options)


def _label(drafts: int | None, concurrency: int, rate: float) -> str:
    load = f"{concurrency} at once" if concurrency else f"{rate:g}/s"
    speculation = {None: "auto", 0: "off"}.get(drafts, f"k={drafts}")
    return f"{load}, speculation {speculation}"


def _counts(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _range(text: str) -> tuple[int, int]:
    low, _, high = text.partition(":")
    return int(low), int(high or low)


def _drafts(text: str) -> tuple[int | None, ...]:
    return tuple(None if part == "auto" else int(part) for part in text.split(","))
