"""``spearhead doctor``: looks for what would go wrong, and says how to mend it."""

import argparse
from collections.abc import Iterator
from pathlib import Path

from spearhead.cli.checks import Finding
from spearhead.cli.checks.configuration import check_configuration
from spearhead.cli.checks.installation import check_installation
from spearhead.cli.checks.models import check_models
from spearhead.cli.checks.ports import check_listen


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command."""
    parser = commands.add_parser("doctor", help="check versions, ports, models and configuration")
    parser.set_defaults(run=run)
    parser.add_argument("--model", metavar="PATH|HUB_ID", help="check this target")
    parser.add_argument("--draft", metavar="PATH|HUB_ID", help="check this draft, and that both agree")
    parser.add_argument("--listen", default="127.0.0.1:50051", metavar="ADDRESS", help="must be free")
    parser.add_argument("--config-dir", type=Path, metavar="DIR", help="check the TOML files in it")


def run(arguments: argparse.Namespace) -> int:
    """Prints every finding; 1 when something is wrong."""
    wrong = 0
    for finding in _findings(arguments):
        wrong += not finding.ok
        print(f"{'ok   ' if finding.ok else 'WRONG'}  {finding.subject}: {finding.text}", flush=True)
        if not finding.ok:
            print(f"       mend: {finding.remedy}", flush=True)
    print("all is well" if not wrong else f"{wrong} {'problem' if wrong == 1 else 'problems'}")
    return 1 if wrong else 0


def _findings(arguments: argparse.Namespace) -> Iterator[Finding]:
    yield from check_installation()
    yield check_listen(arguments.listen)
    if arguments.config_dir:
        yield from check_configuration(arguments.config_dir)
    if arguments.model:
        yield from check_models(arguments.model, arguments.draft)
