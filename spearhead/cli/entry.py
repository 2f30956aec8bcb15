"""Parses the command line, runs one command, turns errors into a message and an exit code."""

import argparse
import os
import sys
from collections.abc import Sequence

from spearhead import __version__
from spearhead.cli import (
    attach,
    bench,
    calibrate,
    demo,
    doctor,
    evaluate,
    generate,
    profile,
    quantize,
    trace,
    up,
)
from spearhead.cli.supervisor import ChildFailure
from spearhead.errors import SpearheadError, StartupError

_COMMANDS = (up, generate, demo, profile, quantize, calibrate, attach, evaluate, doctor, bench, trace)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs ``spearhead``.

    Args:
        argv: Arguments without the program's name; ``None`` = those of this process.

    Returns:
        0; 1 when the command failed; 2 when it cannot run as asked; 130 after Ctrl-C.
    """
    arguments = _parser().parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except StartupError as error:
        print(f"spearhead {arguments.command}: {error.message}", file=sys.stderr)
        return 2
    except SpearheadError as error:
        print(f"spearhead {arguments.command}: {error.code.name}: {error.message}", file=sys.stderr)
        return 1
    except ChildFailure as failure:
        print(f"spearhead {arguments.command}: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output has gone; a second complaint from the interpreter's exit helps nobody.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="spearhead", description="Speculative decoding in three services.")
    parser.add_argument("--version", action="version", version=f"spearhead {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in _COMMANDS:
        command.add_parser(commands)
    return parser
