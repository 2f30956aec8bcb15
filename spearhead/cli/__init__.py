"""The ``spearhead`` command."""

from spearhead.cli.entry import main

__all__ = ["main"]
