"""The command line that all services share."""

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from spearhead import config as configuration
from spearhead.errors import StartupError

EXIT_CONFIG = 2
EXIT_INTERRUPTED = 130

Config = TypeVar("Config")


def main(
    service: str,
    config_cls: type[Config],
    run: Callable[[Config], Awaitable[None]],
    argv: Sequence[str] | None = None,
) -> int:
    """Reads the configuration and runs the service to its end.

    Args:
        service: Name of its package, as in ``python -m verify_service``.
        config_cls: Its configuration.
        run: Serves until it is told to stop.
        argv: Arguments; ``None`` = those of the process.

    Returns:
        The exit code: 0, 2 for a :class:`StartupError` (one line on stderr), 130 for an interrupt before
        the service could drain.
    """
    arguments = _parser(service).parse_args(argv)
    try:
        config = configuration.load(config_cls, arguments.config, arguments.set)
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(_as_coroutine(run(config)))
    except StartupError as error:
        print(f"{service}: {error.message}", file=sys.stderr)
        return EXIT_CONFIG
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return 0


def _parser(service: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"python -m {service}", description=f"Runs the {service}.")
    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML file")
    parser.add_argument(
        "--set", action="append", default=[], metavar="SECTION.KEY=VALUE",
        help="override one value, such as server.listen=127.0.0.1:7001; may be repeated",
    )  # fmt: skip
    return parser


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # an optional extra
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


async def _as_coroutine(awaitable: Awaitable[Any]) -> None:
    await awaitable
