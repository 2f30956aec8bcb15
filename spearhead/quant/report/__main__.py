"""``python -m spearhead.quant.report report.json report.html``: makes the page of a written report."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from spearhead.errors import StartupError
from spearhead.quant.report.writing import render


def main(arguments: Sequence[str]) -> int:
    """Runs the command.

    Args:
        arguments: Without the program's name.

    Returns:
        The exit code: 0, or 2 with one line on standard error.
    """
    parser = argparse.ArgumentParser(
        prog="python -m spearhead.quant.report", description="Make the page of a recovery report."
    )
    parser.add_argument("json", type=Path, help="report.json of a calibration")
    parser.add_argument("html", type=Path, help="page to write")
    options = parser.parse_args(arguments)
    try:
        render(options.json, options.html)
    except StartupError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
