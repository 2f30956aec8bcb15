"""Every number of the recovery claims from one command: ``python -m benchmarks.recovery``."""
