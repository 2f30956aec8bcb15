"""``spearhead up``: the three services on this machine, in one terminal, until Ctrl-C."""

import argparse
import asyncio
import contextlib
import signal
import sys
from pathlib import Path

from spearhead.cli.checks.ports import check_listen
from spearhead.cli.stack import StackOptions
from spearhead.cli.supervisor import Supervisor
from spearhead.errors import ConfigError


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command."""
    parser = commands.add_parser("up", help="start verify, draft and scheduler on this machine")
    parser.set_defaults(run=run)
    add_stack_options(parser)
    parser.add_argument(
        "--listen", default="127.0.0.1:50051", metavar="ADDRESS", help="the front door (default %(default)s)"
    )


def add_stack_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that say what a local stack consists of."""
    group = parser.add_argument_group("services")
    group.add_argument("--model", default="", metavar="PATH|HUB_ID", help="target: folder, .gguf or hub id")
    group.add_argument(
        "--draft",
        default="ngram",
        metavar="PATH|HUB_ID|ngram|layer_skip|none",
        help="draft model, a drafter without one, or none (default %(default)s)",
    )
    group.add_argument(
        "--quantization", default="", metavar="SCHEME", help="round the target at load: group32, …"
    )
    group.add_argument("--threads", type=int, default=0, metavar="N", help="compute threads of each worker")
    group.add_argument(
        "--latency-table", type=Path, metavar="FILE", help="plan steps with what `spearhead profile` wrote"
    )
    group.add_argument(
        "--config-dir", type=Path, metavar="DIR", help="verify.toml, draft.toml, scheduler.toml"
    )
    group.add_argument(
        "--set", action="append", default=[], metavar="SERVICE.SECTION.KEY=VALUE", help="override; repeatable"
    )


def stack_options_from(arguments: argparse.Namespace, listen: str) -> StackOptions:
    """The stack that the options describe, with its front door at ``listen``.

    Raises:
        CheckpointError: The model is a hub id that cannot be fetched.
    """
    return StackOptions(
        model=arguments.model,
        tokenizer=_local_path(arguments.model),
        draft=arguments.draft,
        quantization=arguments.quantization,
        listen=listen,
        threads=arguments.threads,
        latency_table=arguments.latency_table,
        config_folder=arguments.config_dir,
        overrides=tuple(arguments.set),
    )


def run(arguments: argparse.Namespace) -> int:
    """Runs the stack until a signal (exit code 0) or until a service dies (1).

    Raises:
        ConfigError: The front door's address cannot be used; said before any model is loaded.
    """
    front = check_listen(arguments.listen)
    if not front.ok:
        raise ConfigError(f"{front.subject} {front.text}; {front.remedy}")
    return asyncio.run(_serve(stack_options_from(arguments, arguments.listen)))


def print_line(name: str, text: str) -> None:
    """One line of a service on standard error, after its name."""
    print(f"{name:>9} | {text}", file=sys.stderr, flush=True)


def _local_path(model: str) -> str:
    """Where a hub model lies on this machine, for the scheduler, which cannot fetch it; else empty."""
    if not model or Path(model).exists():
        return ""
    # Imported here: only a hub id needs the model packages in this process.
    from spearhead.model.checkpoint import open_checkpoint

    print_line("up", f"looking for {model} on the hub")
    return str(open_checkpoint(model).path)


async def _serve(options: StackOptions) -> int:
    supervisor = Supervisor(options, log=print_line, progress=print_line)
    session = asyncio.create_task(_session(supervisor))

    def on_signal() -> None:
        if session.cancelling():
            supervisor.kill()
            return
        print_line("up", "stopping; the same signal again stops at once")
        session.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    with contextlib.suppress(asyncio.CancelledError):
        await session
    return 0


async def _session(supervisor: Supervisor) -> None:
    async with supervisor:
        print_line("up", f"serving at {supervisor.address}; Ctrl-C drains and stops")
        await supervisor.watch()
