"""``spearhead generate``: streams one answer from a running server."""

import argparse
import contextlib
import json
import sys
from dataclasses import asdict

from spearhead.cli.connection import add_connection_options, target_from
from spearhead.cli.sampling import add_sampling_options, sampling_from, slo_from, speculation_from
from spearhead.cli.tables import summary_line
from spearhead.client import Client, Delta, Event, Finished, Message, RequestOptions
from spearhead.errors import ConfigError


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command."""
    parser = commands.add_parser("generate", help="stream an answer from a running server")
    parser.set_defaults(run=run)
    parser.add_argument("prompt", nargs="?", help="the prompt; left out or '-' = standard input")
    parser.add_argument("--chat", action="store_true", help="lay the prompt out with the chat template")
    parser.add_argument("--system", metavar="TEXT", help="system message; implies --chat")
    parser.add_argument("--json", action="store_true", help="print every event as one line of JSON")
    parser.add_argument("--quiet", action="store_true", help="no summary on standard error")
    parser.add_argument("--priority", type=int, default=0, metavar="N", help="-100..100, higher first")
    parser.add_argument("--request-id", default="", metavar="ID")
    parser.add_argument("--timeout", type=float, default=600.0, metavar="S", help="deadline in seconds (600)")
    add_sampling_options(parser)
    add_connection_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Streams the answer to standard output."""
    prompt = _prompt(arguments.prompt)
    options = _options(arguments)
    with Client(target_from(arguments)) as client:
        if arguments.chat or arguments.system:
            options["messages"] = _messages(arguments.system, prompt)
            events = client.generate(**options)
        else:
            events = client.generate(prompt, **options)
        with contextlib.closing(events):
            for event in events:
                _print(event, as_json=arguments.json, quiet=arguments.quiet)
    return 0


def _prompt(argument: str | None) -> str:
    if argument is not None and argument != "-":
        return argument
    if argument is None and sys.stdin.isatty():
        raise ConfigError("no prompt: give one as an argument or on standard input")
    return sys.stdin.read()


def _options(arguments: argparse.Namespace) -> RequestOptions:
    return {
        "sampling": sampling_from(arguments),
        "speculation": speculation_from(arguments),
        "precision": arguments.precision,
        "slo": slo_from(arguments),
        "priority": arguments.priority,
        "request_id": arguments.request_id,
        "timeout_s": arguments.timeout,
    }


def _messages(system: str | None, prompt: str) -> list[Message]:
    messages = [Message(role="system", content=system)] if system else []
    return [*messages, Message(role="user", content=prompt)]


def _print(event: Event, *, as_json: bool, quiet: bool) -> None:
    if as_json:
        print(json.dumps({"event": type(event).__name__.lower(), **asdict(event)}), flush=True)
    elif isinstance(event, Delta):
        print(event.text, end="", flush=True)
    elif isinstance(event, Finished):
        print(flush=True)
        if not quiet:
            print(summary_line(event), file=sys.stderr)
