"""Measures kernels and writes their plans, offline: ``python -m kernels.tuning``."""
