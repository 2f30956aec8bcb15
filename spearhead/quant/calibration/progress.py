"""How a calibration tells how far it is."""

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Told a stage, and how much of how much of it is done; raising ends the run, which can go on later."""


def silent(_stage: str, _done: int, _total: int) -> None:
    """Tells nobody."""
