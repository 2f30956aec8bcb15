"""``spearhead bench``: load and latency of a whole deployment, beside a baseline."""

from spearhead.cli.bench.command import add_parser

__all__ = ["add_parser"]
