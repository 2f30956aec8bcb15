"""``spearhead attach``: gives an artefact the compensators that were fitted elsewhere to the same weights."""

import argparse
from pathlib import Path


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command."""
    parser = commands.add_parser("attach", help="add compensators that were fitted elsewhere")
    parser.set_defaults(run=run)
    parser.add_argument("artefact", type=Path, metavar="ARTEFACT", help="folder of 4-bit weights")
    parser.add_argument(
        "compensators", type=Path, metavar="FOLDER", help="`spear` folder of a calibrated artefact"
    )


def run(arguments: argparse.Namespace) -> int:
    """Attaches and says what."""
    # Imported here: torch takes seconds to load, and the other commands do without it.
    from spearhead.quant.attach import attach_compensators

    found = attach_compensators(arguments.artefact, arguments.compensators)
    print(
        f"{arguments.artefact}: compensators for {len(found.by_module)} modules, "
        f"{found.stored_bytes / 1e6:.2f} MB"
    )
    return 0
