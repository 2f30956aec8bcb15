"""What commands ask of their options: which are given, whether they are in range and have an effect."""

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from spearhead.errors import ConfigError


def given(arguments: argparse.Namespace, names: Iterable[str]) -> dict[str, Any]:
    """Those options that the command line names; the others have the defaults of what takes them."""
    values = {name: vars(arguments)[name] for name in names}
    return {
        name: value
        for name, value in values.items()
        if value is not None and value is not False and value != []  # 0 is a value
    }


def refuse_idle(names: Iterable[str], where: str) -> None:
    """Refuses options that nothing would look at: whoever gives one expects something of it.

    Args:
        names: Of the options that are given and idle.
        where: Says what makes them idle, such as ``without --text``.

    Raises:
        ConfigError: There are any.
    """
    idle = ", ".join(map(_written, names))
    if idle:
        raise ConfigError(f"{idle} would have no effect {where}; leave out what has none")


def check_least(arguments: argparse.Namespace, names: Iterable[str], least: float) -> None:
    """Refuses numbers below ``least``, infinite ones and NaN.

    Raises:
        ConfigError: The first of them.
    """
    for name, value in vars(arguments).items():
        if name in names and value is not None and not least <= value < float("inf"):  # NaN is not
            raise ConfigError(f"{_written(name)} is {value}; it must be at least {least}")


def check_json_place(path: Path | None) -> None:
    """Refuses a file that could not be written in the end, before any work.

    Raises:
        ConfigError: Its folder is not there, or it is a folder itself.
    """
    if path is None:
        return
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"--json {path}: the folder {path.parent} does not exist")
    if path.is_dir():
        raise ConfigError(f"--json {path} is a folder; name a file in it")


def publish_line(line: str, path: Path | None) -> None:
    """Prints the last line of a command, then writes it to a file if one is asked for.

    Raises:
        ConfigError: The file cannot be written; the line is printed by then.
    """
    print(line, flush=True)
    if path is None:
        return
    try:
        path.write_text(line + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"--json {path} cannot be written: {error.strerror}; the same is the last line of the output"
        ) from error


def _written(name: str) -> str:
    return f"--{name.replace('_', '-')}"
