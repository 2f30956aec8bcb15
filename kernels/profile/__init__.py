"""Measures the kernels of one model and writes its latency table, offline: ``python -m kernels.profile``."""
