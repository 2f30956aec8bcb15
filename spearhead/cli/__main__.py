"""``python -m spearhead.cli``: the same as the ``spearhead`` command."""

from spearhead.cli.entry import main

if __name__ == "__main__":
    raise SystemExit(main())
