"""What ``spearhead doctor`` looks at, one module a subject."""

from spearhead.cli.checks.finding import Finding

__all__ = ["Finding"]
