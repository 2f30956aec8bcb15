"""How a benchmark ends: rows as they come, then one line of JSON, also where it was interrupted."""

import json
import signal
from collections.abc import Callable, Iterable
from typing import Any

from kernels.tuning.timing import command, facts

Row = dict[str, Any]


def collect(rows: Iterable[Row], show: Callable[[Row], str]) -> tuple[list[Row], bool]:
    """Prints each row as soon as it is measured; an interrupt keeps what there is.

    Args:
        rows: Measured one by one.
        show: A row as a line for people.

    Returns:
        The rows, and whether these are all.
    """
    # A shell starts what it runs in the background with interrupts ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    found: list[Row] = []
    try:
        for row in rows:
            found.append(row)
            print(show(row), flush=True)
    except KeyboardInterrupt:
        print("interrupted: the rest is not measured", flush=True)
        return found, False
    return found, True


def last_line(benchmark: str, rows: list[Row], *, complete: bool, **setup: object) -> str:
    """The JSON that ends a benchmark: what ran, on what, and each row.

    Args:
        benchmark: Its name.
        rows: As collected.
        complete: Whether these are all.
        setup: What else the numbers depend on.
    """
    head = {"benchmark": benchmark, "command": command(), **facts(), **setup, "complete": complete}
    return json.dumps({**head, "rows": rows})
